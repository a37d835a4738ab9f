package etcd_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
)

// leaderOf returns which of the nodes leads the cluster.
func leaderOf(t *testing.T, c *clientv3.Client, nodes []*testserver.Etcd) (leader int) {
	t.Helper()
	eventually(t, func() string {
		for i, n := range nodes {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			status, err := c.Status(ctx, n.Addr())
			cancel()
			if err == nil && status.Leader == status.Header.MemberId {
				leader = i
				return ""
			}
		}
		return "the cluster has no leader"
	})
	return leader
}

// lostAnswer makes a call whose request arrives and whose answer does not.
func lostAnswer(t *testing.T, proxy *testserver.Proxy, arrived func() bool, call func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	proxy.Blackhole(testserver.ToClient)
	result := make(chan error, 1)
	go func() { result <- call(ctx) }()
	eventually(t, func() string {
		if !arrived() {
			return "the request has no effect"
		}
		return ""
	})
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatalf("the call ended with %v; want the context's error", err)
	}
	proxy.Drop()
	proxy.Heal()
}

// releases releases until it succeeds: the first attempts may meet connections that are dead.
func releases(t *testing.T, n driver.Session, election string, token uint64) {
	t.Helper()
	eventually(t, func() string {
		if err := n.Release(deadline(t), election, token); err != nil {
			return err.Error()
		}
		return ""
	})
}

// The answer is lost, and the caller has given up (S6, A6, B2, B4, B10).
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	operator := connect(t, server.URL())
	proxy := testserver.StartProxy(t, server.Addr())
	n := openSession(t, openStore(t, proxy.URL(server.URL())), "n", time.Hour)
	other := openSession(t, openStore(t, server.URL()), "other", time.Hour)
	there := func(election string) bool {
		return must(operator.Get(deadline(t), election+"/"+n.ID(), clientv3.WithCountOnly()))(t).Count == 1
	}
	take := func(election string) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			_, err := n.Acquire(ctx, driver.Bid{Election: election, Queue: true})
			return err
		}
	}
	first := acquire(t, n, "first")

	lostAnswer(t, proxy, func() bool { return there("vacant") }, take("vacant"))
	grant := renewed(t, n)
	if grant.Holds["vacant"] == 0 || grant.Holds["first"] != first.Token || len(grant.Holds) != 2 {
		t.Errorf("Holds is %v; want first and vacant", grant.Holds)
	}
	// It can be released by its token as well as adopted.
	if r, err := n.Acquire(deadline(t), driver.Bid{Election: "vacant"}); err != nil || r.Token != grant.Holds["vacant"] {
		t.Errorf("Acquire again: %+v, %v; want token %d", r, err, grant.Holds["vacant"])
	}
	if err := n.Release(deadline(t), "vacant", grant.Holds["vacant"]); err != nil {
		t.Fatal(err)
	}
	if grant := renewed(t, n); grant.Holds != nil {
		t.Errorf("Holds is %v", grant.Holds)
	}

	acquire(t, other, "others")
	lostAnswer(t, proxy, func() bool { return there("others") }, take("others"))
	releases(t, n, "others", 0)
	if there("others") {
		t.Error("a place is left after Release")
	}

	lostAnswer(t, proxy, func() bool { return !there("first") }, func(ctx context.Context) error { return n.Release(ctx, "first", first.Token) })
	for _, token := range []uint64{first.Token, 0} { // a release can be repeated until it is certain
		releases(t, n, "first", token)
	}
	if grant := renewed(t, n); len(grant.Holds) != 0 {
		t.Errorf("Holds is %v", grant.Holds)
	}
}

// A place whose request took effect after its caller had even released is found and given up, and so is one at the head, which a renewal tells of.
func TestStrayKeys(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	operator := connect(t, server.URL())
	s := openStore(t, server.URL())
	n, other := openSession(t, s, "n", time.Hour), openSession(t, s, "other", time.Hour)
	acquire(t, other, "e")
	must(operator.Put(deadline(t), "e/"+n.ID(), "", clientv3.WithLease(leaseOf(t, n.ID()))))(t)
	must(operator.Put(deadline(t), "vacant/"+n.ID(), "", clientv3.WithLease(leaseOf(t, n.ID()))))(t)
	if grant := renewed(t, n); len(grant.Holds) != 1 || grant.Holds["vacant"] == 0 {
		t.Errorf("Holds is %v; want vacant", grant.Holds)
	}
	if count := must(operator.Get(deadline(t), "e/"+n.ID()))(t).Count; count != 0 {
		t.Error("the place is still there")
	}
}

// What an operator does to a leader's key, or to its lease, the leader hears at once, not at its next renewal (A5).
func TestHarmIsHeardAtOnce(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	operator := connect(t, server.URL())
	for name, harm := range map[string]func(key, session string){
		"deleted":                       func(key, _ string) { must(operator.Delete(deadline(t), key))(t) },
		"overwritten without its lease": func(key, _ string) { must(operator.Put(deadline(t), key, "x"))(t) },
		"lease revoked":                 func(_, session string) { must(operator.Revoke(deadline(t), leaseOf(t, session)))(t) },
	} {
		n := openSession(t, openStore(t, server.URL()), "n", time.Hour)
		held := acquire(t, n, "e")
		renewed(t, n)
		for drained := false; !drained; {
			select {
			case <-n.Changed():
			case <-time.After(100 * time.Millisecond): // long enough for what is under way
				drained = true
			}
		}
		harm("e/"+n.ID(), n.ID())
		select {
		case <-n.Changed():
		case <-time.After(patience):
			t.Fatalf("%s: nothing was heard", name)
		}
		grant, err := n.KeepAlive(deadline(t))
		if name == "lease revoked" {
			if !errors.Is(err, driver.ErrSessionLost) {
				t.Errorf("%s: KeepAlive: %v; want ErrSessionLost", name, err)
			}
			continue
		}
		if err != nil || grant.Holds == nil || grant.Holds["e"] != 0 {
			t.Errorf("%s: Holds is %v (%v); want it to be without e", name, grant.Holds, err)
		}
		if again := acquire(t, n, "e"); again.Token <= held.Token {
			t.Errorf("%s: token %d after %d", name, again.Token, held.Token)
		}
		if err := n.Close(deadline(t)); err != nil {
			t.Error(err)
		}
		if count := must(operator.Get(deadline(t), "e/", clientv3.WithPrefix()))(t).Count; count != 0 {
			t.Errorf("%s: %d keys are left after Close", name, count)
		}
	}
}

// A candidate whose lease is revoked while it waits learns it, and its place is nobody's (B1).
func TestRevokedWhileWaiting(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	operator := connect(t, server.URL())
	s := openStore(t, server.URL())
	holder, waiter, next := openSession(t, s, "holder", time.Hour), openSession(t, s, "waiter", time.Hour), openSession(t, s, "next", time.Hour)
	held := acquire(t, holder, "e")
	queue(t, waiter, "e")
	queue(t, next, "e")
	lost, won := campaign(t, waiter, "e"), campaign(t, next, "e")
	must(operator.Revoke(deadline(t), leaseOf(t, waiter.ID())))(t)
	if o := <-lost; !errors.Is(o.err, driver.ErrSessionLost) {
		t.Errorf("the candidate without a lease: %+v; want ErrSessionLost", o)
	}
	if err := holder.Release(deadline(t), "e", held.Token); err != nil {
		t.Fatal(err)
	}
	if o := <-won; o.err != nil || o.record.Token <= held.Token {
		t.Errorf("the next in line: %+v", o)
	}
}

// History is compacted while a candidate waits, cut off: what happened cannot be told to it any more, and it has to look.
func TestCompactedWhileWaiting(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	operator := connect(t, server.URL())
	proxy := testserver.StartProxy(t, server.Addr())
	holder := openSession(t, openStore(t, server.URL()), "holder", time.Hour)
	s := openStore(t, proxy.URL(server.URL()))
	waiter := openSession(t, s, "waiter", time.Hour)
	held := acquire(t, holder, "e")
	queue(t, waiter, "e")
	compact := func() {
		for i := range 3 {
			must(operator.Put(deadline(t), "other", strconv.Itoa(i)))(t)
		}
		r := must(operator.Get(deadline(t), "other"))(t)
		must(operator.Compact(deadline(t), r.Header.Revision))(t)
	}
	compact() // between the refusal and the wait
	won := campaign(t, waiter, "e")
	states := statesOf(t, s, "e")
	if r := <-states; r.Session != holder.ID() {
		t.Errorf("the watch begins with %+v", r)
	}
	proxy.Refuse()
	proxy.Drop()
	if err := holder.Release(deadline(t), "e", held.Token); err != nil {
		t.Fatal(err)
	}
	compact()
	proxy.Heal()
	if o := <-won; o.err != nil || o.record.Token <= held.Token {
		t.Errorf("after compaction: %+v", o)
	}
	for end := time.After(patience); ; {
		select {
		case r := <-states:
			if r.Session == waiter.ID() {
				return
			}
		case <-end:
			t.Fatal("the watch has not seen the new leader")
		}
	}
}

// A watch whose connection has died in silence says so, and does not wait for ever (C6).
func TestWatchOfSilence(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	proxy := testserver.StartProxy(t, server.Addr())
	s := openStore(t, proxy.URL(server.URL()))
	first := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		told := false
		for _, err := range s.Watch(context.Background(), "e") {
			if err != nil {
				ended <- err
				return
			}
			if !told {
				told = true
				close(first)
			}
		}
	}()
	<-first
	proxy.Blackhole(testserver.ToClient)
	began := time.Now()
	select {
	case err := <-ended:
		t.Logf("%v after %v", err, time.Since(began))
	case <-time.After(patience):
		t.Errorf("nothing in %v", patience)
	}
}

// Closing is bounded, whatever the server does (C3).
func TestCloseIsBounded(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	s := openStoreOnly(t, server.URL())
	n, waiter := openSession(t, s, "n", time.Hour), openSession(t, s, "waiter", time.Hour)
	acquire(t, n, "e")
	queue(t, waiter, "e")
	awaited := make(chan error, 1)
	go func() { awaited <- waiter.Await(context.Background(), "e") }()
	server.Pause()
	defer server.Resume()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	began := time.Now()
	if err := n.Close(ctx); err == nil {
		t.Error("Close of a session succeeded without a server")
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("Close of a session with a second took %v", took)
	}
	began = time.Now()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("Close of the store took %v", took)
	}
	if err := <-awaited; err == nil {
		t.Error("Await says that the election is vacant")
	}
}
