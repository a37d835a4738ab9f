package postgres_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/driver/drivertest"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/postgres"
)

// A log collects what is logged.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) count(word string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), word)
}

func (l *log) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Behind PgBouncer in transaction mode there are no notifications. That is found out, said once, and made up for by polling (E11).
func TestPooler(t *testing.T) {
	server := testserver.StartPostgres(t)
	pooler := testserver.StartPgBouncer(t, server)
	var l log
	s, err := postgres.OpenWith(deadline(t), pooler.URL(), l.logger())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if info := s.Info(); info.Push || !strings.Contains(strings.Join(info.Caveats, " "), "pooler") {
		t.Errorf("Info is %+v", info)
	}
	leader := openSession(t, s, "leader", time.Hour)
	if leader.Changed() != nil {
		t.Error("Changed is not nil although nothing is pushed")
	}
	waiter := openSession(t, openStore(t, pooler.URL()), "waiter", time.Hour)
	for range 3 {
		held, err := campaign(deadline(t), leader, "e")
		if err != nil {
			t.Fatal(err)
		}
		won := waiting(t, waiter, "e")
		began := time.Now()
		if err := leader.Release(deadline(t), "e", held.Token); err != nil {
			t.Fatal(err)
		}
		if err := <-won; err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the handover took %v", took)
		}
		leader, waiter = waiter, leader
	}
	if n := l.count("level=WARN"); n != 1 {
		t.Errorf("%d warnings: %s", n, l.b.String())
	}
	// The pooler is killed and comes back.
	pooler.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	if _, err := leader.KeepAlive(ctx); err == nil {
		t.Error("KeepAlive succeeded without a pooler")
	}
	cancel()
	pooler.Start()
	renewed(t, leader)
	refused(t, with(t, pooler.URL(), "bound", "true"), "bound", "transaction mode")
	direct := openStore(t, server.URL())
	if !direct.Info().Push {
		t.Error("without a pooler there is no push")
	}
	// Both kinds stand in one election.
	mixed := openSession(t, direct, "direct", time.Hour)
	held, err := campaign(deadline(t), mixed, "mixed")
	if err != nil {
		t.Fatal(err)
	}
	won := waiting(t, leader, "mixed")
	if err := mixed.Release(deadline(t), "mixed", held.Token); err != nil {
		t.Fatal(err)
	}
	if err := <-won; err != nil {
		t.Fatal(err)
	}
	if n := query[int64](t, connect(t, server.URL()), `SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'`); n != 0 {
		t.Errorf("%d transactions are left open", n)
	}
}

// The pooler's clients have the same tables, so the suite passes there too.
func TestConformanceBehindPooler(t *testing.T) {
	server := testserver.StartPostgres(t, "max_connections=200", "default_transaction_isolation=serializable")
	pooler := testserver.StartPgBouncer(t, server)
	operator := connect(t, server.URL())
	storeURL := with(t, pooler.URL(), "poll", "50ms")
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		h := harness(server.URL(), operator, "tenure")
		h.Open = func(t testing.TB) driver.Store { return openStoreOnly(t, storeURL) }
		h.Cycles = 200
		return h
	})
}

// A request whose context ends is not cancelled at the server, for that can end the pooler. What it does later is found out.
func TestPoolerIsNotAskedToCancel(t *testing.T) {
	t.Parallel()
	server := testserver.StartPostgres(t)
	pooler := testserver.StartPgBouncer(t, server)
	s := openSession(t, openStore(t, pooler.URL()), "leader", time.Hour)
	r, err := s.Acquire(deadline(t), driver.Bid{Election: "e"})
	if err != nil {
		t.Fatal(err)
	}
	admin := connect(t, server.URL())
	tx, err := admin.Begin(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(deadline(t), "SELECT FROM tenure.elections WHERE name = 'e' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	looks := connect(t, server.URL())
	blocked := func() bool {
		return query[bool](t, looks, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock')")
	}
	ctx, cancel := context.WithCancel(deadline(t))
	released := make(chan error, 1)
	go func() { released <- s.Release(ctx, "e", r.Token) }()
	eventually(t, func() string {
		if !blocked() {
			return "the release does not wait for the record"
		}
		return ""
	})
	cancel()
	if err := <-released; err == nil {
		t.Fatal("Release has an answer")
	}
	time.Sleep(500 * time.Millisecond) // in which a request to cancel would arrive
	if !blocked() {
		t.Error("the release was cancelled at the server")
	}
	if err := tx.Commit(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(deadline(t), "e", r.Token); err != nil {
		t.Errorf("Release again: %v", err)
	}
}
