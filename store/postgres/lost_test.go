package postgres_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/postgres"
)

// proxied returns a proxy in front of the server of a URL.
func proxied(t *testing.T, admin string) *testserver.Proxy {
	t.Helper()
	config, err := pgxpool.ParseConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	return testserver.StartProxy(t, net.JoinHostPort(config.ConnConfig.Host, portOf(config)))
}

// lostAnswer makes a call whose request arrives and whose answer does not.
func lostAnswer(t *testing.T, proxy *testserver.Proxy, arrived func() bool, call func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	proxy.Blackhole(testserver.ToClient)
	result := make(chan error, 1)
	go func() { result <- call(ctx) }()
	eventually(t, func() string {
		if !arrived() {
			return "the request has no effect"
		}
		return ""
	})
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatalf("the call ended with %v; want the context's error", err)
	}
	proxy.Drop()
	proxy.Heal()
}

// The answer to Acquire is lost, and its caller has given up (S6, B2, B4). The next KeepAlive tells of the election; the place in a queue is given up.
func TestLostAnswers(t *testing.T) {
	admin := newDatabase(t)
	operator := connect(t, admin)
	proxy := proxied(t, admin)
	// One connection for all calls but renewals, so that it is known to have the statements prepared.
	n := openSession(t, openStore(t, with(t, proxy.URL(admin), "pool_max_conns", "1")), "n", time.Hour)
	other := openSession(t, openStore(t, admin), "other", time.Hour)
	held := func(election string) bool {
		return query[int64](t, operator, `SELECT count(*) FROM tenure.elections WHERE name = $1 AND session = $2`, election, n.ID()) == 1
	}
	placed := func(election string) bool {
		return query[int64](t, operator, `SELECT count(*) FROM tenure.waiters WHERE election = $1 AND session = $2`, election, n.ID()) == 1
	}
	acquire := func(election string) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			_, err := n.Acquire(ctx, driver.Bid{Election: election, Queue: true})
			return err
		}
	}
	first, err := campaign(deadline(t), n, "first")
	if err != nil { // connections are there and statements prepared
		t.Fatal(err)
	}

	lostAnswer(t, proxy, func() bool { return held("vacant") }, acquire("vacant"))
	grant := renewed(t, n)
	if grant.Holds["vacant"] == 0 || grant.Holds["first"] == 0 || len(grant.Holds) != 2 {
		t.Errorf("Holds is %v; want first and vacant", grant.Holds)
	}
	// It can be released by its token as well as adopted.
	if r, err := n.Acquire(deadline(t), driver.Bid{Election: "vacant"}); err != nil || r.Token != grant.Holds["vacant"] {
		t.Errorf("Acquire again: %+v, %v; want token %d", r, err, grant.Holds["vacant"])
	}
	if err := n.Release(deadline(t), "vacant", grant.Holds["vacant"]); err != nil {
		t.Fatal(err)
	}
	if grant := renewed(t, n); grant.Holds != nil {
		t.Errorf("Holds is %v", grant.Holds)
	}

	if _, err := campaign(deadline(t), other, "others"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Acquire(deadline(t), driver.Bid{Election: "first", Queue: true}); err != nil { // to prepare the statements on the new connection
		t.Fatal(err)
	}
	lostAnswer(t, proxy, func() bool { return placed("others") }, acquire("others"))
	if err := n.Release(deadline(t), "others", 0); err != nil {
		t.Fatal(err)
	}
	if placed("others") {
		t.Error("a place is left after Release")
	}

	lostAnswer(t, proxy, func() bool { return !held("first") }, func(ctx context.Context) error {
		return n.Release(ctx, "first", first.Token)
	})
	if err := n.Release(deadline(t), "first", 0); err != nil { // a release can be repeated until it is certain (B10)
		t.Error(err)
	}
	if grant := renewed(t, n); len(grant.Holds) != 0 {
		t.Errorf("Holds is %v", grant.Holds)
	}
}

// A place whose Acquire was applied after its caller had even released is found and given up.
func TestStrayPlace(t *testing.T) {
	admin := newDatabase(t)
	operator := connect(t, admin)
	other := openSession(t, openStore(t, admin), "other", time.Hour)
	n := openSession(t, openStore(t, admin), "n", time.Hour)
	if _, err := campaign(deadline(t), other, "e"); err != nil {
		t.Fatal(err)
	}
	exec(t, admin, `INSERT INTO tenure.waiters (election, session, member, value) VALUES ('e', $1, 'n', '')`, n.ID())
	eventually(t, func() string {
		renewed(t, n)
		if query[int64](t, operator, `SELECT count(*) FROM tenure.waiters`) > 0 {
			return "the place is still there"
		}
		return ""
	})
}

// Closing is bounded, whatever the server does (C3).
func TestCloseIsBounded(t *testing.T) {
	server := testserver.StartPostgres(t)
	s, err := postgres.Open(deadline(t), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	n := openSession(t, s, "n", time.Hour)
	waiter := openSession(t, s, "waiter", time.Hour)
	if _, err := campaign(deadline(t), n, "e"); err != nil {
		t.Fatal(err)
	}
	if _, err := waiter.Acquire(deadline(t), driver.Bid{Election: "e", Queue: true}); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	awaited := make(chan error, 1)
	go func() { awaited <- waiter.Await(context.Background(), "e") }()
	server.Pause()
	defer server.Resume()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	began := time.Now()
	if err := n.Close(ctx); err == nil {
		t.Error("Close of a session succeeded without a server")
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("Close of a session with a second took %v", took)
	}
	began = time.Now()
	_ = s.Close() // it may say that something was in use
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("Close of the store took %v", took)
	}
	if err := <-awaited; err == nil {
		t.Error("Await says that the election is vacant")
	}
	t.Logf("Close of the store took %v", time.Since(began))
}

// A store that is closed leaves nothing behind.
func TestStoreLeavesNothing(t *testing.T) {
	admin := newDatabase(t)
	operator := connect(t, admin)
	cycle := func() {
		s := openStoreOnly(t, admin)
		n := openSession(t, s, "n", time.Hour)
		if _, err := campaign(deadline(t), n, "e"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		for _, err := range s.Watch(ctx, "e") {
			if err != nil {
				t.Error(err)
			}
			break
		}
		cancel()
		if err := n.Close(deadline(t)); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	cycle()
	goroutines := runtime.NumGoroutine()
	for range 20 {
		cycle()
	}
	eventually(t, func() string {
		if n := runtime.NumGoroutine(); n > goroutines+3 {
			b := make([]byte, 1<<16)
			return string(b[:runtime.Stack(b, true)])
		}
		return ""
	})
	eventually(t, func() string {
		if n := query[int64](t, operator, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenure' AND datname = current_database()`); n > 0 {
			return "connections are left"
		}
		return ""
	})
}
