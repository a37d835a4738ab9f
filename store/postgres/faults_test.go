package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/postgres"
	"github.com/gotenure/tenure/store/sqlstore"
)

const terminate = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'tenure' AND datname = current_database()`

// waiting returns the outcome of a campaign that began in the background and waits.
func waiting(t testing.TB, s driver.Session, election string) <-chan error {
	t.Helper()
	if _, err := s.Acquire(deadline(t), driver.Bid{Election: election, Queue: true}); !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("Acquire: %v; want ErrHeld", err)
	}
	result := make(chan error, 1)
	go func() {
		ctx := deadline(t)
		for {
			_, err := campaign(ctx, s, election)
			if err == nil || ctx.Err() != nil || errors.Is(err, driver.ErrSessionLost) {
				result <- err
				return
			}
			time.Sleep(20 * time.Millisecond) // as package tenure backs off
		}
	}()
	return result
}

// renewed renews until it succeeds: the first attempts may meet connections that are dead.
func renewed(t testing.TB, s driver.Session) driver.Grant {
	t.Helper()
	var grant driver.Grant
	eventually(t, func() string {
		var err error
		grant, err = s.KeepAlive(deadline(t))
		if errors.Is(err, driver.ErrSessionLost) {
			t.Fatal(err)
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
	return grant
}

// All of a process's connections are ended by the server, while it leads and while it waits (A12, E6).
func TestTerminatedBackends(t *testing.T) {
	admin := newDatabase(t)
	leader := openSession(t, openStore(t, admin), "leader", time.Hour)
	waiterStore := openStore(t, admin)
	waiter := openSession(t, waiterStore, "waiter", time.Hour)
	operator := connect(t, admin)
	for round := range 5 {
		first, err := campaign(deadline(t), leader, "e")
		if err != nil {
			t.Fatal(err)
		}
		won := waiting(t, waiter, "e")
		if n := query[int64](t, operator, terminate); n < 3 {
			t.Fatalf("only %d connections", n)
		}
		began := time.Now()
		if grant := renewed(t, leader); grant.Holds != nil {
			t.Errorf("Holds is %v", grant.Holds)
		}
		renewed(t, waiter)
		t.Logf("renewed %v after", time.Since(began))
		if round%2 == 0 { // else the release comes while nobody listens
			eventually(t, func() string {
				if n := query[int64](t, operator, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenure' AND datname = current_database() AND query ~ '^(LISTEN|SELECT pg_backend_pid|-- ping)'`); n < 2 {
					return "they do not listen again"
				}
				return ""
			})
		}
		if err := leader.Release(deadline(t), "e", first.Token); err != nil {
			t.Fatalf("Release: %v", err)
		}
		if err := <-won; err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		leader, waiter = waiter, leader
	}
}

// The connection for notifications goes silent, the others do not. What was notified meanwhile must not be missed for longer than it takes
// to notice (C6).
func TestSilentListener(t *testing.T) {
	admin := newDatabase(t)
	leader := openSession(t, openStore(t, admin), "leader", time.Hour)
	first, err := campaign(deadline(t), leader, "e")
	if err != nil {
		t.Fatal(err)
	}
	config, err := pgxpool.ParseConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	server := net.JoinHostPort(config.ConnConfig.Host, portOf(config))
	proxy := testserver.StartProxy(t, server)
	var proxied atomic.Bool
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if proxied.CompareAndSwap(true, false) { // a store makes the one that listens first
			addr = proxy.Addr()
		}
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}
	pool, err := pgxpool.NewWithConfig(deadline(t), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := pool.Ping(deadline(t)); err != nil { // the pool has its first connection
		t.Fatal(err)
	}
	proxied.Store(true)
	store, err := postgres.New(deadline(t), pool, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	waiter := openSession(t, store, "waiter", time.Hour)
	won := waiting(t, waiter, "e")
	records := make(chan driver.Record, 10)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for r, err := range store.Watch(ctx, "e") {
			if err == nil {
				records <- r
			}
		}
	}()
	<-records
	if proxy.Connections() != 1 {
		t.Fatalf("%d connections through the proxy", proxy.Connections())
	}
	proxy.Blackhole(testserver.ToClient)
	began := time.Now()
	if err := leader.Release(deadline(t), "e", first.Token); err != nil {
		t.Fatal(err)
	}
	if err := <-won; err != nil {
		t.Fatal(err)
	}
	t.Logf("noticed after %v", time.Since(began))
	if r := <-records; r.Session != waiter.ID() {
		t.Errorf("the watch says %+v", r)
	}
}

func portOf(config *pgxpool.Config) string {
	_, port, _ := strings.Cut(strings.TrimPrefix(config.ConnConfig.ConnString(), "postgres://"), "@")
	_, port, _ = strings.Cut(port, ":")
	port, _, _ = strings.Cut(port, "/")
	return port
}

// The whole server goes silent for a process. Its watch says so, its renewals end with their context, and afterwards all works.
func TestSilentServer(t *testing.T) {
	admin := newDatabase(t)
	config, err := pgxpool.ParseConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	proxy := testserver.StartProxy(t, net.JoinHostPort(config.ConnConfig.Host, portOf(config)))
	for _, d := range []testserver.Direction{testserver.ToClient, testserver.ToServer} {
		store := openStore(t, proxy.URL(admin))
		leader := openSession(t, store, "leader", time.Hour)
		if _, err := campaign(deadline(t), leader, "e"); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		first := make(chan struct{}, 1)
		go func() {
			for _, err := range store.Watch(context.Background(), "e") {
				if err != nil {
					ended <- err
					return
				}
				first <- struct{}{}
			}
		}()
		<-first
		proxy.Blackhole(d)
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := leader.KeepAlive(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("KeepAlive: %v; want the context's error", err)
		}
		select {
		case err := <-ended:
			t.Logf("the watch ended after %v: %v", time.Since(began), err)
		case <-time.After(patience):
			t.Error("the watch is silent")
		}
		proxy.Heal()
		if grant := renewed(t, leader); grant.Holds != nil {
			t.Errorf("Holds is %v", grant.Holds)
		}
		if r, err := store.Get(deadline(t), "e"); err != nil || r.Session != leader.ID() {
			t.Errorf("Get: %+v, %v", r, err)
		}
		if err := leader.Release(deadline(t), "e", 0); err != nil {
			t.Error(err)
		}
	}
}

// The server is killed and started again. A term outlives that, nobody takes over before its TTL, and tokens grow (E10).
func TestServerCrash(t *testing.T) {
	server := testserver.StartPostgres(t)
	leader := openSession(t, openStore(t, server.URL()), "leader", time.Minute)
	other := openSession(t, openStore(t, server.URL()), "other", time.Minute)
	for _, crash := range []func(){server.Kill, server.Stop} {
		first, err := campaign(deadline(t), leader, "e")
		if err != nil {
			t.Fatal(err)
		}
		won := waiting(t, other, "e")
		crash()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		if _, err := leader.KeepAlive(ctx); err == nil || errors.Is(err, driver.ErrSessionLost) {
			t.Fatalf("KeepAlive without a server: %v", err)
		}
		cancel()
		server.Start()
		select {
		case err := <-won:
			t.Fatalf("the restart made another the holder: %v", err)
		case <-time.After(500 * time.Millisecond): // it must not happen
		}
		if grant := renewed(t, leader); grant.Holds != nil {
			t.Errorf("after the restart Holds is %v", grant.Holds)
		}
		if err := leader.Release(deadline(t), "e", first.Token); err != nil {
			t.Fatal(err)
		}
		if err := <-won; err != nil {
			t.Fatal(err)
		}
		second, err := other.Acquire(deadline(t), driver.Bid{Election: "e"})
		if err != nil || second.Token <= first.Token {
			t.Fatalf("token %d after %d, %v", second.Token, first.Token, err)
		}
		leader, other = other, leader
	}
}

// A leader dies with its process while the server is away for longer than its TTL. The next one leads afterwards, by itself.
func TestOutageLongerThanTTL(t *testing.T) {
	server := testserver.StartPostgres(t)
	leader := openSession(t, openStore(t, server.URL()), "leader", time.Second)
	other := openSession(t, openStore(t, server.URL()), "other", time.Minute)
	if _, err := campaign(deadline(t), leader, "e"); err != nil {
		t.Fatal(err)
	}
	won := waiting(t, other, "e")
	server.Kill()
	time.Sleep(1500 * time.Millisecond) // the outage, longer than the leader's TTL
	server.Start()
	renewed(t, other)
	if err := <-won; err != nil {
		t.Fatal(err)
	}
	if _, err := leader.KeepAlive(deadline(t)); !errors.Is(err, driver.ErrSessionLost) {
		t.Fatalf("KeepAlive of the dead leader: %v", err)
	}
}

// An operator drops the schema under the members (B9). They are told, the schema is made anew, and tokens go on growing.
func TestSchemaDropped(t *testing.T) {
	storeURL, schema := newSchema(t)
	s := openStore(t, storeURL)
	leader := openSession(t, s, "leader", time.Hour)
	waiter := openSession(t, s, "waiter", time.Hour)
	first, err := campaign(deadline(t), leader, "e")
	if err != nil {
		t.Fatal(err)
	}
	won := waiting(t, waiter, "e")
	exec(t, storeURL, `DROP SCHEMA `+schema+` CASCADE`)
	if _, err := s.Get(deadline(t), "e"); err == nil || !strings.Contains(err.Error(), schema) {
		t.Errorf("Get: %v; want an error that names the schema", err)
	}
	if _, err := leader.KeepAlive(deadline(t)); !errors.Is(err, driver.ErrSessionLost) || !strings.Contains(err.Error(), schema) {
		t.Errorf("KeepAlive: %v; want ErrSessionLost that names the schema", err)
	}
	if _, err := waiter.KeepAlive(deadline(t)); !errors.Is(err, driver.ErrSessionLost) {
		t.Errorf("KeepAlive: %v; want ErrSessionLost", err)
	}
	if err := <-won; !errors.Is(err, driver.ErrSessionLost) {
		t.Errorf("the wait ended with %v; want ErrSessionLost", err)
	}
	again := openSession(t, s, "leader", time.Hour)
	second, err := campaign(deadline(t), again, "e")
	if err != nil || second.Token <= first.Token {
		t.Errorf("token %d after %d, %v", second.Token, first.Token, err)
	}
	// Everything works on in the new schema, with statements that were prepared in the old one.
	next := openSession(t, openStore(t, storeURL), "next", time.Hour)
	won = waiting(t, next, "e")
	if err := again.Release(deadline(t), "e", second.Token); err != nil {
		t.Fatal(err)
	}
	if err := <-won; err != nil {
		t.Fatal(err)
	}
}

// An operator drops a part of the schema. The members make it anew.
func TestPartOfSchemaDropped(t *testing.T) {
	for part, statement := range map[string]string{"token": "DROP SEQUENCE %s.token", "waiters": "DROP TABLE %s.waiters CASCADE", "elections": "DROP TABLE %s.elections CASCADE"} {
		t.Run(part, func(t *testing.T) {
			storeURL, schema := newSchema(t)
			s := openStore(t, storeURL)
			before := openSession(t, s, "leader", time.Hour)
			first, err := campaign(deadline(t), before, "e")
			if err != nil {
				t.Fatal(err)
			}
			exec(t, storeURL, fmt.Sprintf(statement, schema))
			if _, err := before.Acquire(deadline(t), driver.Bid{Election: "f", Queue: true}); !errors.Is(err, driver.ErrSessionLost) || !strings.Contains(err.Error(), schema) {
				t.Errorf("Acquire: %v; want ErrSessionLost that names the schema", err)
			}
			again := openSession(t, s, "leader", time.Hour)
			second, err := again.Acquire(deadline(t), driver.Bid{Election: "f", Queue: true})
			if err != nil || second.Token <= first.Token {
				t.Errorf("token %d after %d, %v", second.Token, first.Token, err)
			}
			if n := query[int64](t, connect(t, storeURL), "SELECT count(*) FROM "+schema+".status"); n == 0 {
				t.Error("the view shows nothing")
			}
			refusing := with(t, storeURL, "create", "false")
			exec(t, storeURL, fmt.Sprintf(statement, schema))
			_, err = postgres.Open(deadline(t), refusing)
			checkError(t, err, schema, "tenure store init")
		})
	}
}

// A logical replica gets the rows and not the sequence, and an operator may set it back. The tokens of an election grow all the same.
func TestSequenceSetBack(t *testing.T) {
	storeURL, schema := newSchema(t)
	s := openStore(t, storeURL)
	leader, waiter := openSession(t, s, "leader", time.Hour), openSession(t, s, "waiter", time.Hour)
	first, err := campaign(deadline(t), leader, "e")
	if err != nil {
		t.Fatal(err)
	}
	exec(t, storeURL, `SELECT setval('`+schema+`.token', 1)`)
	won := waiting(t, waiter, "e")
	if err := leader.Release(deadline(t), "e", first.Token); err != nil {
		t.Fatal(err)
	}
	if err := <-won; err != nil {
		t.Fatal(err)
	}
	second, err := campaign(deadline(t), waiter, "e")
	if err != nil || second.Token <= first.Token {
		t.Errorf("handed over: token %d after %d, %v", second.Token, first.Token, err)
	}
	if err := waiter.Release(deadline(t), "e", second.Token); err != nil {
		t.Fatal(err)
	}
	third, err := campaign(deadline(t), leader, "e")
	if err != nil || third.Token <= second.Token {
		t.Errorf("taken: token %d after %d, %v", third.Token, second.Token, err)
	}
}

// A notification that was held up on its way says what was. It proves nothing once the place that it is for was lost again.
func TestLateNotification(t *testing.T) {
	storeURL, schema := newSchema(t)
	s := openStore(t, storeURL)
	leader, waiter, third := openSession(t, s, "leader", time.Hour), openSession(t, s, "waiter", time.Hour), openSession(t, s, "third", time.Hour)
	first, err := campaign(deadline(t), leader, "e")
	if err != nil {
		t.Fatal(err)
	}
	bid := driver.Bid{Election: "e", Queue: true}
	if _, err := waiter.Acquire(deadline(t), bid); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	operator := connect(t, storeURL)
	nonce := query[int64](t, operator, `SELECT nonce FROM `+schema+`.waiters`)
	// It is given to the waiter, who learns of it by renewing, and then taken away again.
	exec(t, storeURL, `DELETE FROM `+schema+`.waiters; UPDATE `+schema+`.elections SET session = '`+waiter.ID()+`', member = 'waiter', token = nextval('`+schema+`.token')`)
	given := query[int64](t, operator, `SELECT token FROM `+schema+`.elections`)
	if _, err := waiter.KeepAlive(deadline(t)); err != nil {
		t.Fatal(err)
	}
	exec(t, storeURL, `DELETE FROM `+schema+`.elections`)
	now, err := third.Acquire(deadline(t), bid)
	if err != nil || now.Token <= first.Token {
		t.Fatal(now, err)
	}
	if _, err := waiter.Acquire(deadline(t), bid); !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("Acquire: %v; want ErrHeld", err)
	}
	s.Heard(sqlstore.Event{Kind: sqlstore.Given, Election: "e", Session: waiter.ID(), Token: uint64(given), AcquiredAt: 1, Nonce: nonce})
	if r, err := waiter.Acquire(deadline(t), bid); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Acquire after a late notification: token %d, %v; want ErrHeld, for %s holds it with token %d", r.Token, err, now.Leader, now.Token)
	}
}

// Databases may have other defaults than PostgreSQL's.
func TestHostileDefaults(t *testing.T) {
	admin := newDatabase(t)
	operator := connect(t, admin)
	database := query[string](t, operator, `SELECT current_database()::text`)
	for _, setting := range []string{
		`default_transaction_isolation = 'serializable'`, `synchronous_commit = off`,
		`standard_conforming_strings = off`, `search_path = ''`, `DateStyle = 'German'`, `TimeZone = 'Australia/Lord_Howe'`, `bytea_output = 'escape'`, `extra_float_digits = -15`,
		`default_transaction_read_only = on`, // the last: it is for the operator too
	} {
		exec(t, admin, `ALTER DATABASE `+database+` SET `+setting)
	}
	tortureDatabase(t, admin, 3*time.Second)
}
