package zookeeper_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/zookeeper"
)

// patience bounds every wait for something that must happen.
const patience = testserver.Patience

type office = testserver.Office

var deadline, eventually, newOffice = testserver.Deadline, testserver.Eventually, testserver.NewOffice

// use opens a store that is closed when the test ends.
func use(t testing.TB, storeURL string) *zookeeper.Store {
	t.Helper()
	s := open(t, storeURL)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	return s
}

func openSession(t testing.TB, s *zookeeper.Store, member string, ttl time.Duration) driver.Session {
	t.Helper()
	m, err := s.Open(deadline(t), member, ttl)
	if err != nil {
		t.Fatalf("open a session: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = m.Close(ctx) // the test may have ended it, or its server
	})
	return m
}

// campaign acquires, and waits as long as another holds the election.
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

func acquire(t testing.TB, s driver.Session, election string) driver.Record {
	t.Helper()
	r, err := campaign(deadline(t), s, election)
	if err != nil {
		t.Fatalf("acquire %q: %v", election, err)
	}
	return r
}

// join starts a member that holds the office whenever it leads, and returns what ends it in good order.
func join(t testing.TB, s driver.Store, o *office, election, name string, ttl time.Duration) (stop func()) {
	t.Helper()
	member, err := tenure.Join(deadline(t), s, tenure.Config{ID: name, TTL: ttl, StablePeriod: 100 * time.Millisecond})
	if err != nil {
		t.Fatalf("join: %v", err)
	}
	return o.Stand(member, election, name)
}
