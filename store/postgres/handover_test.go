package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/postgres"
)

// A candidate stands for a process: it has a store of its own.
type candidate struct {
	driver.Session
	store *postgres.Store
}

func newCandidates(t testing.TB, storeURL string, n int) []candidate {
	candidates := make([]candidate, n)
	for i := range candidates {
		s := openStore(t, storeURL)
		candidates[i] = candidate{openSession(t, s, fmt.Sprint("member ", i), time.Hour), s}
	}
	return candidates
}

// campaign acquires and waits until the session holds the election.
func campaign(ctx context.Context, s driver.Session, election string) (driver.Record, error) {
	for {
		r, err := s.Acquire(ctx, driver.Bid{Election: election, Queue: true})
		if !errors.Is(err, driver.ErrHeld) {
			return r, err
		}
		if err := s.Await(ctx, election); err != nil {
			return r, err
		}
	}
}

// A release is a direct transfer: one commit and one notification, and the other candidates send nothing.
func TestHandoverIsOneCommit(t *testing.T) {
	admin := newDatabase(t)
	const waiters = 5
	c := newCandidates(t, admin, 1+waiters)
	first, err := campaign(deadline(t), c[0], "e")
	if err != nil {
		t.Fatal(err)
	}
	won := make(chan int, waiters)
	for i := 1; i <= waiters; i++ {
		if _, err := c[i].Acquire(deadline(t), driver.Bid{Election: "e", Queue: true}); !errors.Is(err, driver.ErrHeld) {
			t.Fatal(err)
		}
		go func() {
			if c[i].Await(deadline(t), "e") == nil { // the sessions are closed at the end
				won <- i
			}
		}()
	}
	operator := connect(t, admin)
	heard := connect(t, admin)
	if _, err := heard.Exec(deadline(t), "LISTEN tenure"); err != nil {
		t.Fatal(err)
	}
	began := query[int64](t, operator, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint`)
	if err := c[0].Release(deadline(t), "e", first.Token); err != nil {
		t.Fatal(err)
	}
	if i := <-won; i != 1 {
		t.Fatalf("candidate %d won, of those who wait since the first", i)
	}
	second, err := c[1].Acquire(deadline(t), driver.Bid{Election: "e", Queue: true})
	if err != nil {
		t.Fatal(err)
	}
	if second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	// Transactions that only read have no number, so numbers count the commits of all processes.
	if n := query[int64](t, operator, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint`) - began; n != 1 {
		t.Errorf("the handover took %d transactions that write", n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	notifications := 0
	for {
		if _, err := heard.WaitForNotification(ctx); err != nil {
			break
		}
		notifications++
	}
	if notifications != 1 {
		t.Errorf("%d notifications", notifications)
	}
	select {
	case i := <-won:
		t.Errorf("candidate %d was woken too", i)
	default:
	}
	for _, c := range c {
		_ = c.Close(deadline(t)) // ends the waits
	}
}

// Not a test of speed, for machines differ and tests run side by side: it prints what /bench measures, and fails when a handover waits for a timer.
func TestHandoverWaitsForNoTimer(t *testing.T) {
	admin := newDatabase(t)
	for _, n := range []int{2, 30} {
		c := newCandidates(t, admin, n)
		election := fmt.Sprint("of ", n)
		held, err := campaign(deadline(t), c[0], election)
		if err != nil {
			t.Fatal(err)
		}
		var took []time.Duration
		for round := range 30 {
			leader, next := c[round%n], c[(round+1)%n]
			for i := 1; i < n; i++ {
				if _, err := c[(round+i)%n].Acquire(deadline(t), driver.Bid{Election: election, Queue: true}); !errors.Is(err, driver.ErrHeld) {
					t.Fatal(err)
				}
			}
			led := make(chan time.Time, 1)
			var won driver.Record
			go func() {
				var err error
				if won, err = campaign(deadline(t), next, election); err != nil {
					t.Error(err)
				}
				led <- time.Now()
			}()
			time.Sleep(20 * time.Millisecond) // the successor should wait by then; it wins all the same if it does not
			began := time.Now()
			if err := leader.Release(deadline(t), election, held.Token); err != nil {
				t.Fatal(err)
			}
			took = append(took, (<-led).Sub(began))
			held = won
		}
		slices.Sort(took)
		floor := handoverFloor(t, admin)
		t.Logf("%d candidates: median %v, floor %v, ratio %.2f", n, took[len(took)/2], floor, float64(took[len(took)/2])/float64(floor))
		if took[len(took)/2] > 500*time.Millisecond {
			t.Errorf("median %v: handovers wait for something", took[len(took)/2])
		}
	}
}

// handoverFloor is the median time of a commit with a notification until the notification is received.
func handoverFloor(t testing.TB, admin string) time.Duration {
	a, b := connect(t, admin), connect(t, admin)
	for _, sql := range []string{`CREATE TABLE IF NOT EXISTS floor (name text PRIMARY KEY, holder text)`, `INSERT INTO floor VALUES ('x', 'me') ON CONFLICT DO NOTHING`} {
		if _, err := a.Exec(deadline(t), sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Exec(deadline(t), "LISTEN floor"); err != nil {
		t.Fatal(err)
	}
	var took []time.Duration
	for range 30 {
		got := make(chan error, 1)
		go func() {
			_, err := b.WaitForNotification(deadline(t))
			got <- err
		}()
		time.Sleep(20 * time.Millisecond) // as between handovers
		began := time.Now()
		if _, err := a.Exec(deadline(t), "WITH r AS (UPDATE floor SET holder = NULL WHERE name = $1 RETURNING 1) SELECT pg_notify('floor', 'free') FROM r", "x"); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2]
}
