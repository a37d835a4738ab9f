package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
)

// Whoever is next leads by the events alone that its watch tells: it sends nothing between the news and its term. That nobody is between it and the leader, a new leader
// tells it.
func TestNextInLineLeadsWithoutAsking(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	first := openSession(t, openStore(t, server.URL()), "first", time.Hour)
	held := acquire(t, first, "e")
	type candidate struct {
		driver.Session
		proxy   *testserver.Proxy
		awaited chan error
	}
	stand := func(member string) candidate {
		proxy := testserver.StartProxy(t, server.Addr())
		c := candidate{openSession(t, openStore(t, proxy.URL(server.URL())), member, time.Hour), proxy, make(chan error, 1)}
		queue(t, c, "e")
		return c
	}
	await := func(c candidate) {
		go func() { c.awaited <- c.Await(deadline(t), "e") }()
		time.Sleep(time.Second) // a candidate whose watch is not there yet reads, which the test would take for a fault
	}
	leads := func(c candidate, release func() error) {
		t.Helper()
		held = testserver.LeadsUnheard(t, c.proxy, c, driver.Bid{Election: "e", Value: []byte("of " + c.ID()), Queue: true}, c.awaited, held.Token, release)
	}
	second, third := stand("second"), stand("third")
	await(second)
	await(third)
	leads(second, func() error { return first.Release(deadline(t), "e", held.Token) })
	if err := <-third.awaited; err != nil {
		t.Fatal(err)
	}
	queue(t, third, "e")
	await(third)
	leads(third, func() error { return second.Release(deadline(t), "e", held.Token) })
}

// The news that the leader is gone comes late, to a candidate whose own place is gone by then or was written by somebody else: it does not lead by it (S1, S6).
func TestLateNews(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	operator := connect(t, server.URL())
	for name, harm := range map[string]func(leader, own string){
		"deleted before":     func(_, own string) { must(operator.Delete(deadline(t), own))(t) },
		"overwritten before": func(_, own string) { must(operator.Put(deadline(t), own, "x"))(t) },
		"deleted with the leader's": func(leader, own string) {
			must(operator.Txn(deadline(t)).Then(clientv3.OpDelete(leader), clientv3.OpDelete(own)).Commit())(t)
		},
		"deleted after": func(leader, own string) {
			must(operator.Delete(deadline(t), leader))(t)
			must(operator.Delete(deadline(t), own))(t)
		},
		"all deleted": func(string, string) { must(operator.Delete(deadline(t), "e/", clientv3.WithPrefix()))(t) },
	} {
		proxy := testserver.StartProxy(t, server.Addr())
		holder := openSession(t, openStore(t, server.URL()), "holder", time.Hour)
		s := openStore(t, proxy.URL(server.URL()))
		waiter := openSession(t, s, "waiter", time.Hour)
		rival := openSession(t, openStore(t, server.URL()), "rival", time.Hour)
		held := acquire(t, holder, "e")
		queue(t, waiter, "e")
		queue(t, rival, "e")
		awaited := make(chan error, 1)
		go func() { awaited <- waiter.Await(deadline(t), "e") }()
		time.Sleep(100 * time.Millisecond) // as above
		proxy.Blackhole(testserver.ToClient)
		harm("e/"+holder.ID(), "e/"+waiter.ID())
		if err := holder.Release(deadline(t), "e", held.Token); err != nil {
			t.Fatal(err)
		}
		var leads driver.Record
		eventually(t, func() string {
			r, err := rival.Acquire(deadline(t), driver.Bid{Election: "e", Queue: true})
			if name == "overwritten before" && errors.Is(err, driver.ErrCorrupt) {
				must(operator.Delete(deadline(t), "e/"+waiter.ID()))(t)
			}
			if err != nil {
				return err.Error()
			}
			leads = r
			return ""
		})
		proxy.Heal()
		if err := <-awaited; err != nil {
			t.Fatalf("%s: Await: %v", name, err)
		}
		bid := driver.Bid{Election: "e", Value: []byte("of " + waiter.ID()), Queue: true} // as it stands there already: another would be written, and the truth found out
		r, err := waiter.Acquire(deadline(t), bid)
		if name == "deleted after" && err == nil && r.Token < leads.Token {
			// It has led since the leader went, until its key was deleted, which it hears at once.
			eventually(t, func() string {
				if grant := renewed(t, waiter); grant.Holds == nil || grant.Holds["e"] != 0 {
					return "the waiter is not told that its key is gone"
				}
				return ""
			})
			r, err = waiter.Acquire(deadline(t), bid)
		}
		if !errors.Is(err, driver.ErrHeld) || r.Session != rival.ID() {
			t.Errorf("%s: Acquire: %+v, %v; want that the rival holds it", name, r, err)
		}
		for _, n := range []driver.Session{rival, waiter, holder} {
			if err := n.Close(deadline(t)); err != nil {
				t.Error(err)
			}
		}
	}
}

// A candidate's bid is the caller's again once the call has returned: what becomes of its bytes changes nothing of what was and of what is to be published.
func TestBidIsNotKept(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	s := openStore(t, server.URL())
	holder, waiter := openSession(t, s, "holder", time.Hour), openSession(t, s, "waiter", time.Hour)
	held := acquire(t, holder, "e")
	bid := driver.Bid{Election: "e", Value: []byte("old"), Queue: true}
	if _, err := waiter.Acquire(deadline(t), bid); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	awaited := make(chan error, 1)
	go func() { awaited <- waiter.Await(deadline(t), "e") }()
	time.Sleep(100 * time.Millisecond) // as above
	if err := holder.Release(deadline(t), "e", held.Token); err != nil {
		t.Fatal(err)
	}
	if err := <-awaited; err != nil {
		t.Fatal(err)
	}
	copy(bid.Value, "new")
	if _, err := waiter.Acquire(deadline(t), bid); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Get(deadline(t), "e"); err != nil || string(r.Value) != "new" {
		t.Errorf("%q is published (%v); want new", r.Value, err)
	}
}

// Somebody writes the leader's key so that it does not end with its owner, who dies. Who waits says so, as it would wait for ever, and leads when the key is deleted.
func TestOverwrittenByTheDead(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	operator := connect(t, server.URL())
	s := openStore(t, server.URL())
	for i, name := range []string{"next", "one behind"} {
		election := fmt.Sprint("e", i)
		holder, waiter := openSession(t, s, "holder", time.Hour), openSession(t, s, "waiter", time.Hour)
		acquire(t, holder, election)
		before, dead := holder, []driver.Session{holder}
		if i == 1 {
			before = openSession(t, s, "between", time.Hour)
			dead = append(dead, before)
			queue(t, before, election)
		}
		queue(t, waiter, election)
		awaited := make(chan error, 1)
		go func() { awaited <- waiter.Await(deadline(t), election) }()
		key := election + "/" + before.ID()
		must(operator.Put(deadline(t), key, "x"))(t)
		for _, n := range dead {
			must(operator.Revoke(deadline(t), leaseOf(t, n.ID())))(t)
		}
		if err := <-awaited; err != nil {
			t.Fatalf("%s: Await: %v", name, err)
		}
		bid := driver.Bid{Election: election, Queue: true}
		eventually(t, func() string {
			if _, err := waiter.Acquire(deadline(t), bid); !errors.Is(err, driver.ErrCorrupt) {
				return fmt.Sprintf("%s: Acquire: %v; want ErrCorrupt", name, err)
			}
			return ""
		})
		must(operator.Delete(deadline(t), key))(t)
		if _, err := waiter.Acquire(deadline(t), bid); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Elections whose names go on with a slash stand in the same range, and make a candidate read more than once. The leader goes between two of those reads: nobody sleeps through that.
func TestReleasedBetweenReads(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	proxy := testserver.StartProxy(t, server.Addr())
	other := openStore(t, server.URL())
	holder, beside := openSession(t, other, "holder", time.Hour), openSession(t, other, "beside", time.Hour)
	waiter := openSession(t, openStore(t, proxy.URL(server.URL())), "waiter", time.Hour)
	for try := range 8 {
		election := fmt.Sprint("e", try)
		held := acquire(t, holder, election)
		acquire(t, beside, election+"/eu")
		proxy.Delay(testserver.ToClient, 100*time.Millisecond)
		refused := make(chan error, 1)
		go func() {
			_, err := waiter.Acquire(deadline(t), driver.Bid{Election: election, Queue: true})
			refused <- err
		}()
		time.Sleep(time.Duration(50+50*try) * time.Millisecond) // some of these are between two reads
		if err := holder.Release(deadline(t), election, held.Token); err != nil {
			t.Fatal(err)
		}
		proxy.Heal()
		if err := <-refused; err == nil {
			continue
		} else if !errors.Is(err, driver.ErrHeld) {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(deadline(t), 10*time.Second)
		err := waiter.Await(ctx, election)
		cancel()
		if err != nil {
			t.Fatalf("try %d: the leader went before Await, which sleeps: %v", try, err)
		}
		if _, err := waiter.Acquire(deadline(t), driver.Bid{Election: election, Queue: true}); err != nil {
			t.Errorf("try %d: %v", try, err)
		}
	}
}
