package memory_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/memory"
)

// TestExpiryIsExact shows what the suite, which runs in real time on other stores, cannot: a session lapses at the very instant its TTL
// has passed, and the next in line, a watch and the session itself learn it then.
func TestExpiryIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := memory.New()
		defer store.Close()
		const ttl = 10 * time.Second
		start := time.Now()
		first, err := store.Open(ctx, "first", ttl)
		if err != nil {
			t.Fatal(err)
		}
		second, err := store.Open(ctx, "second", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close(ctx)
		held, err := first.Acquire(ctx, driver.Bid{Election: "e", Value: []byte("1")})
		if err != nil {
			t.Fatal(err)
		}
		if !held.ExpiresAt.Equal(start.Add(ttl)) {
			t.Errorf("expires at %v, want %v", held.ExpiresAt, start.Add(ttl))
		}
		if _, err := second.Acquire(ctx, driver.Bid{Election: "e", Value: []byte("2"), Queue: true}); !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("Acquire of a held election: %v", err)
		}

		time.Sleep(6 * time.Second) // virtual
		if _, err := first.KeepAlive(ctx); err != nil {
			t.Fatal(err)
		}
		lapse := time.Now().Add(ttl)
		type change struct {
			record driver.Record
			at     time.Time
		}
		changes := make(chan change, 8)
		watching, stop := context.WithCancel(ctx)
		go func() {
			defer close(changes)
			for record, err := range store.Watch(watching, "e") {
				if err != nil {
					return
				}
				changes <- change{record, time.Now()}
			}
		}()
		if err := second.Await(ctx, "e"); err != nil {
			t.Fatal(err)
		}
		if now := time.Now(); !now.Equal(lapse) {
			t.Errorf("Await returned at %v, want %v", now, lapse)
		}
		if _, err := first.KeepAlive(ctx); !errors.Is(err, driver.ErrSessionLost) {
			t.Errorf("renewal at the instant of expiry: %v", err)
		}
		select {
		case <-first.Changed():
		default:
			t.Error("the session that lapsed was not told")
		}
		taken, err := second.Acquire(ctx, driver.Bid{Election: "e", Value: []byte("2")})
		if err != nil || taken.Token <= held.Token {
			t.Errorf("acquired with token %d after %d: %v", taken.Token, held.Token, err)
		}
		synctest.Wait()
		stop()
		<-changes
		if c := <-changes; c.record.Leader != "second" || !c.at.Equal(lapse) {
			t.Errorf("watch saw %+v at %v, want second at %v", c.record, c.at, lapse)
		}
	})
}
