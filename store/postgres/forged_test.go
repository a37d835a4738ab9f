package postgres_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
)

// Whoever may connect may send notifications. One that says that a candidate was given the election, without the nonce of its place, makes it look, not lead.
func TestForgedNotification(t *testing.T) {
	admin := newDatabase(t)
	leader, waiter := openSession(t, openStore(t, admin), "leader", time.Hour), openSession(t, openStore(t, admin), "waiter", time.Hour)
	first, err := campaign(deadline(t), leader, "e")
	if err != nil {
		t.Fatal(err)
	}
	operator := connect(t, admin)
	for _, proof := range []string{"0 0", "1 1", "1 -1", "1 " + fmt.Sprint(int64(1)<<62)} {
		if _, err := waiter.Acquire(deadline(t), driver.Bid{Election: "e", Queue: true}); !errors.Is(err, driver.ErrHeld) {
			t.Fatal(err)
		}
		if n := query[int64](t, operator, `SELECT count(*) FROM tenure.waiters WHERE nonce > 0`); n != 1 {
			t.Fatalf("%d places have a nonce", n)
		}
		exec(t, admin, `SELECT pg_notify('tenure.' || left($1, 12), 'g ' || $1 || ' ' || $2 || ' ' || $3 || ' e')`, waiter.ID(), fmt.Sprint(first.Token+1), proof)
		if err := waiter.Await(deadline(t), "e"); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := waiter.Acquire(deadline(t), driver.Bid{Election: "e", Queue: true}); !errors.Is(err, driver.ErrHeld) || r.Session != leader.ID() {
		t.Errorf("after a forged notification: %+v, %v", r, err)
	}
	if err := leader.Release(deadline(t), "e", first.Token); err != nil {
		t.Fatal(err)
	}
	if second, err := campaign(deadline(t), waiter, "e"); err != nil || second.Token <= first.Token {
		t.Errorf("after the release: %+v, %v", second, err)
	}
}

// A term that was given, and taken away again by an operator before the candidate came for it, is not taken for one.
func TestGivenAndTakenAway(t *testing.T) {
	admin := newDatabase(t)
	leader, waiter := openSession(t, openStore(t, admin), "leader", time.Hour), openSession(t, openStore(t, admin), "waiter", time.Hour)
	first, err := campaign(deadline(t), leader, "e")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := waiter.Acquire(deadline(t), driver.Bid{Election: "e", Queue: true}); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	if err := leader.Release(deadline(t), "e", first.Token); err != nil {
		t.Fatal(err)
	}
	if err := waiter.Await(deadline(t), "e"); err != nil {
		t.Fatal(err)
	}
	exec(t, admin, `UPDATE tenure.elections SET session = $1, member = 'leader', token = token + 1`, leader.ID())
	if _, err := waiter.KeepAlive(deadline(t)); err != nil { // which sees it
		t.Fatal(err)
	}
	if r, err := waiter.Acquire(deadline(t), driver.Bid{Election: "e", Queue: true}); !errors.Is(err, driver.ErrHeld) || r.Session != leader.ID() {
		t.Errorf("%+v, %v; the leader's session is %s", r, err, leader.ID())
	}
}
