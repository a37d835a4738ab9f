package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/driver/drivertest"
)

// With bound=true the end of a process's connection frees what it held, long before its TTL, and the process is told.
func TestBound(t *testing.T) {
	admin := newDatabase(t)
	bound := with(t, admin, "bound", "true")
	operator := connect(t, admin)
	leaderStore := openStore(t, bound)
	leader := openSession(t, leaderStore, "leader", time.Hour)
	waiter := openSession(t, openStore(t, bound), "waiter", time.Hour)
	last := openSession(t, openStore(t, bound), "last", time.Hour)
	first, err := campaign(deadline(t), leader, "e")
	if err != nil {
		t.Fatal(err)
	}
	won, lastWon := waiting(t, waiter, "e"), waiting(t, last, "e")
	select {
	case err := <-won:
		t.Fatalf("the leader lives and was replaced: %v", err)
	case <-time.After(2 * time.Second): // eight looks, at which nothing may be found
	}
	for len(leader.Changed()) > 0 {
		<-leader.Changed()
	}
	began := time.Now()
	if n := query[int64](t, operator, `SELECT count(pg_terminate_backend(l.pid)) FROM pg_locks AS l JOIN tenure.sessions AS s
		ON (l.classid::bigint << 32 | l.objid::bigint) = s.bound WHERE l.locktype = 'advisory' AND s.id = $1`, leader.ID()); n != 1 {
		t.Fatalf("%d connections have the leader's lock", n)
	}
	select {
	case <-leader.Changed():
	case <-time.After(patience):
		t.Error("the leader is not told that its connection is gone")
	}
	if _, err := leader.KeepAlive(deadline(t)); !errors.Is(err, driver.ErrSessionLost) {
		t.Errorf("KeepAlive after the connection's end: %v; want ErrSessionLost", err)
	}
	if err := <-won; err != nil {
		t.Fatal(err)
	}
	t.Logf("replaced after %v", time.Since(began))
	second, err := waiter.Acquire(deadline(t), driver.Bid{Election: "e"})
	if err != nil || second.Token <= first.Token {
		t.Fatalf("token %d after %d, %v", second.Token, first.Token, err)
	}
	// The process goes on with another session, on another connection.
	var again driver.Session
	eventually(t, func() string {
		if again, err = leaderStore.Open(deadline(t), "leader", time.Hour); err != nil {
			return err.Error() // until there is a connection to be bound to
		}
		return ""
	})
	t.Cleanup(func() { _ = again.Close(context.Background()) })
	againWon := waiting(t, again, "e")
	if err := waiter.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-lastWon; err != nil {
		t.Fatal(err)
	}
	if err := last.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-againWon; err != nil {
		t.Fatal(err)
	}
	if grant := renewed(t, again); grant.Holds != nil {
		t.Errorf("Holds is %v", grant.Holds)
	}
}

func TestConformanceBound(t *testing.T) {
	storeURL, schema := newSchema(t)
	operator := connect(t, storeURL)
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		h := harness(storeURL, operator, schema)
		h.Open = func(t testing.TB) driver.Store { return openStoreOnly(t, with(t, storeURL, "bound", "true")) }
		h.Cycles = 200
		return h
	})
}
