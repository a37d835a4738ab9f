package testserver

import (
	"context"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
)

// LeadsUnheard releases an election, and returns the term of the session that waits for it and that the server does not hear any more, for the proxy holds up what it sends: it
// has to lead by what it is told. awaited is the result of its Await, after the token before.
func LeadsUnheard(t testing.TB, proxy *Proxy, s driver.Session, bid driver.Bid, awaited <-chan error, after uint64, release func() error) driver.Record {
	t.Helper()
	proxy.Blackhole(ToServer)
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if err := <-awaited; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := s.Acquire(ctx, bid)
	if err != nil || r.Session != s.ID() || r.Token <= after {
		t.Fatalf("Acquire while nothing reaches the server: %+v, %v", r, err)
	}
	proxy.Heal()
	return r
}
