package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
)

// A thousand campaigns that are cancelled leave nothing: no goroutine, connection, node or watch (B4, C1).
func TestCancelledCampaigns(t *testing.T) {
	z := testserver.StartZooKeeper(t)
	holder := openSession(t, use(t, z.URL()), "holder", 10*time.Minute)
	acquire(t, holder, "e")
	member, err := tenure.Join(deadline(t), use(t, z.URL()), tenure.Config{ID: "m", TTL: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = member.Leave(deadline(t)) }()
	cycle := func(i int) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i%5)*time.Millisecond)
		defer cancel()
		if _, err := member.Campaign(ctx, "e"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("campaign: %v", err)
		}
	}
	for i := range 50 {
		cycle(i)
	}
	least := func(count func() int, limit int) (n int) {
		n = count()
		for end := time.Now().Add(patience / 3); n > limit && time.Now().Before(end); {
			time.Sleep(20 * time.Millisecond) // what ends does not end at once
			n = min(n, count())
		}
		return n
	}
	server := func() int { return resources(t, z.URL()) }
	time.Sleep(time.Second) // what the first cycles have begun ends
	goroutines, atServer := runtime.NumGoroutine(), server()
	for i := range 1000 {
		cycle(i)
	}
	if n := least(runtime.NumGoroutine, goroutines+5); n > goroutines+5 {
		t.Errorf("%d goroutines became %d", goroutines, n)
	}
	if n := least(server, atServer+3); n > atServer+3 {
		t.Errorf("%d resources of the server became %d", atServer, n)
	}
}

// An ensemble of three loses its leader, and a member, and the majority: as long as two are left the term goes on.
func TestEnsemble(t *testing.T) {
	t.Parallel()
	all := testserver.StartZooKeeperEnsemble(t, 3)
	var addrs []string
	for _, z := range all {
		addrs = append(addrs, z.Addr())
	}
	storeURL := "zookeeper://" + strings.Join(addrs, ",")
	const ttl = 15 * time.Second // a machine with others on it takes seconds to elect
	o := newOffice(t)
	for i := range 3 {
		join(t, use(t, storeURL), o, "e", fmt.Sprint("m", i), ttl)
	}
	o.AwaitLeader("m")
	store := use(t, storeURL)
	pick := func(leads bool) *testserver.ZooKeeper {
		var found *testserver.ZooKeeper
		eventually(t, func() string {
			for _, z := range all {
				if z.Leads() == leads {
					found = z
					return ""
				}
			}
			return "no such server"
		})
		return found
	}
	answers := func(what string) {
		t.Helper()
		began := time.Now()
		eventually(t, func() string {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			r, err := store.Get(ctx, "e")
			if err != nil || !r.Held() {
				return fmt.Sprintf("%s: %+v, %v", what, r, err)
			}
			return ""
		})
		t.Logf("%s: read again after %v", what, time.Since(began).Round(time.Millisecond))
		o.AwaitLeader("m")
	}
	for _, leads := range []bool{true, false} {
		z := pick(leads)
		z.Kill()
		answers(fmt.Sprintf("server killed that leads: %t", leads))
		z.Start()
		answers("started again")
	}
	z := pick(true)
	z.Pause()
	answers("leading server paused")
	z.Resume()
	answers("resumed")
	t.Logf("terms: %v", o.All())
}

// A server that is cut off from the majority goes on to answer pings for a while. No renewal succeeds there, and no read (S2, C5).
func TestMinority(t *testing.T) {
	t.Parallel()
	all := testserver.StartZooKeeperEnsemble(t, 3)
	var follower *testserver.ZooKeeper
	for _, z := range all {
		if !z.Leads() {
			follower = z
		}
	}
	store := use(t, follower.URL())
	s := openSession(t, store, "s", 3*time.Second)
	held := acquire(t, s, "e")
	if _, err := store.Get(deadline(t), "e"); err != nil {
		t.Fatal(err)
	}
	for _, z := range all {
		if z != follower {
			z.Pause()
			defer z.Resume()
		}
	}
	ctx, cancel := context.WithTimeout(deadline(t), 2*time.Second)
	defer cancel()
	if grant, err := s.KeepAlive(ctx); err == nil {
		t.Errorf("a minority has granted %+v", grant)
	}
	if r, err := store.Get(ctx, "e"); err == nil {
		t.Errorf("a minority tells %+v", r)
	}
	if r, err := s.Acquire(ctx, driver.Bid{Election: "f"}); err == nil {
		t.Errorf("a minority has given %+v", r)
	}
	for _, z := range all {
		if z != follower {
			z.Resume()
		}
	}
	next := openSession(t, use(t, follower.URL()), "next", 3*time.Second)
	var won driver.Record
	eventually(t, func() string {
		ctx, cancel := context.WithTimeout(deadline(t), 2*time.Second)
		defer cancel()
		if _, err := next.KeepAlive(ctx); errors.Is(err, driver.ErrSessionLost) {
			next = openSession(t, use(t, follower.URL()), "next", 3*time.Second)
		}
		r, err := next.Acquire(ctx, driver.Bid{Election: "e", Queue: true})
		won = r
		if err != nil {
			return err.Error()
		}
		return ""
	})
	if won.Token <= held.Token {
		t.Errorf("token %d after %d", won.Token, held.Token)
	}
}
