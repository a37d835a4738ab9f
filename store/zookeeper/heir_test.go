package zookeeper_test

import (
	"errors"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
)

// Whoever is behind the leader leads by the events alone that its watches tell, also when it came to stand there because a leader before that has gone: it sends nothing
// between the news and its term.
func TestHeirLeadsWithoutAsking(t *testing.T) {
	t.Parallel()
	server := testserver.StartZooKeeper(t)
	first := openSession(t, use(t, server.URL()), "first", 10*time.Minute)
	held := acquire(t, first, "e")
	type candidate struct {
		driver.Session
		proxy   *testserver.Proxy
		awaited chan error
	}
	bid := driver.Bid{Election: "e", Queue: true}
	stand := func(member string) candidate {
		proxy := testserver.StartProxy(t, server.Addr())
		c := candidate{openSession(t, use(t, proxy.URL(server.URL())), member, 10*time.Minute), proxy, make(chan error, 1)}
		if _, err := c.Acquire(t.Context(), bid); !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("%s: %v; want ErrHeld", member, err)
		}
		go func() { c.awaited <- c.Await(t.Context(), "e") }()
		return c
	}
	leads := func(c candidate, release func() error) {
		t.Helper()
		held = testserver.LeadsUnheard(t, c.proxy, c, bid, c.awaited, held.Token, release)
	}
	second, third := stand("second"), stand("third")
	leads(second, func() error { return first.Release(t.Context(), "e", held.Token) })
	time.Sleep(500 * time.Millisecond) // the third looks again; else it asks, which the test would take for a fault
	leads(third, func() error { return second.Release(t.Context(), "e", held.Token) })
}
