package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/zookeeper"
)

// The server stops for less and for more than the TTL: a term with a lease that outlasts that goes on, one without ends in time and somebody leads
// again by himself (A2, A7, A8).
func TestServerStops(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	const short = 4 * time.Second
	long, brief := newOffice(t), newOffice(t)
	join(t, use(t, z.URL()), long, "long", "long", 2*time.Minute)
	for i := range 2 {
		join(t, use(t, z.URL()), brief, "brief", fmt.Sprint("brief-", i), short)
	}
	long.AwaitLeader("long")
	brief.AwaitLeader("brief")
	for _, fault := range []struct {
		what        string
		begin, stop func()
		lasts       time.Duration
	}{
		{"paused for less than the TTL", z.Pause, z.Resume, short / 4},
		{"paused for more than the TTL", z.Pause, z.Resume, 2 * short},
		{"killed and started again", z.Kill, z.Start, 0},
		{"killed for more than the TTL", z.Kill, z.Start, 2 * short},
	} {
		fault.begin()
		time.Sleep(fault.lasts) // the fault has to last
		if who := brief.Leader(); fault.lasts > short && who != "" {
			t.Errorf("%s: %s leads on although its lease has ended", fault.what, who)
		}
		fault.stop()
		healed := time.Now()
		brief.AwaitLeader("brief")
		t.Logf("%s: somebody leads %v after", fault.what, time.Since(healed).Round(time.Millisecond))
	}
	if terms := long.All(); len(terms) != 1 {
		t.Errorf("the term with a long lease was interrupted: %v", terms)
	}
}

// Answers are lost after their effect, at each call: asking again finds the truth, and nothing is left over (B2, S6).
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	proxy := testserver.StartProxy(t, z.Addr())
	s := openSession(t, use(t, proxy.URL(z.URL())), "s", time.Minute)
	other := openSession(t, use(t, z.URL()), "other", time.Minute)
	operator := connect(t, z.URL())
	if _, err := s.KeepAlive(deadline(t)); err != nil {
		t.Fatal(err)
	}
	lose := func(call func(ctx context.Context) error) {
		t.Helper()
		proxy.Blackhole(testserver.ToClient)
		ctx, cancel := context.WithTimeout(deadline(t), 300*time.Millisecond)
		defer cancel()
		err := call(ctx)
		if err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrSessionLost) {
			t.Errorf("the answer was lost, yet the call says %v", err)
		}
		proxy.Drop()
		proxy.Heal()
	}
	nodes := func(want int) {
		t.Helper()
		eventually(t, func() string {
			children, _, err := operator.Children("/e")
			if errors.Is(err, zk.ErrNoNode) && want == 0 {
				return ""
			}
			if err != nil || len(children) != want {
				return fmt.Sprintf("nodes %q, %v; want %d", children, err, want)
			}
			return ""
		})
	}
	acquiring := func(ctx context.Context) error {
		_, err := s.Acquire(ctx, driver.Bid{Election: "e", Queue: true})
		return err
	}
	create(t, operator, "/e", zk.FlagPersistent)
	var last driver.Record
	for range 3 {
		lose(acquiring)
		nodes(1)
		var won driver.Record
		again(t, func(ctx context.Context) (err error) { won, err = campaign(ctx, s, "e"); return err })
		nodes(1)
		if won.Token <= last.Token {
			t.Errorf("token %d after %d", won.Token, last.Token)
		}
		last = won
		lose(func(ctx context.Context) error { return s.Release(ctx, "e", won.Token) })
		again(t, func(ctx context.Context) error { return s.Release(ctx, "e", won.Token) })
		nodes(0)

		// Nobody asks again: a renewal tells of what is held, and a release from any state gives it up.
		lose(acquiring)
		var grant driver.Grant
		again(t, func(ctx context.Context) (err error) { grant, err = s.KeepAlive(ctx); return err })
		if grant.Holds["e"] == 0 {
			t.Fatalf("after an acquire whose answer was lost a renewal says %+v", grant)
		}
		again(t, func(ctx context.Context) error { return s.Release(ctx, "e", 0) })
		nodes(0)
		lose(acquiring)
		again(t, func(ctx context.Context) error { return s.Release(ctx, "e", 0) })
		nodes(0)

		// The place in the queue.
		held := acquire(t, other, "e")
		lose(acquiring)
		nodes(2)
		again(t, func(ctx context.Context) error { return s.Release(ctx, "e", 0) })
		nodes(1)
		if err := other.Release(deadline(t), "e", held.Token); err != nil {
			t.Fatal(err)
		}
		lose(func(ctx context.Context) error { _, err := s.KeepAlive(ctx); return err })
		again(t, func(ctx context.Context) error { _, err := s.KeepAlive(ctx); return err })
	}
}

// again calls until it succeeds: the first attempts may meet a connection that is dead.
func again(t testing.TB, call func(ctx context.Context) error) {
	t.Helper()
	eventually(t, func() string {
		err := call(deadline(t))
		if errors.Is(err, driver.ErrSessionLost) {
			t.Fatal(err)
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
}

// One direction of the connection swallows everything, without a reset: the leader stops in time, and leads again when the network has healed, without help (A1, C6).
func TestBlackhole(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	for _, direction := range []testserver.Direction{testserver.ToServer, testserver.ToClient} {
		t.Run(fmt.Sprint(direction), func(t *testing.T) {
			t.Parallel()
			const ttl = 3 * time.Second
			proxy := testserver.StartProxy(t, z.Addr())
			o := newOffice(t)
			election := fmt.Sprint("blackhole/", direction)
			join(t, use(t, proxy.URL(z.URL())), o, election, "cut", ttl)
			o.AwaitLeader("cut")
			join(t, use(t, z.URL()), o, election, "well", ttl)
			proxy.Blackhole(direction)
			began := time.Now()
			o.AwaitLeader("well")
			t.Logf("replaced after %v", time.Since(began).Round(time.Millisecond))
			proxy.Heal()
			eventually(t, func() string { // it waits in the queue again
				children, _, err := connect(t, z.URL()).Children(zookeeper.Path(election))
				if err != nil || len(children) < 2 {
					return fmt.Sprintf("candidates %q, %v", children, err)
				}
				return ""
			})
		})
	}
}

// A watch whose connection has died in silence says so, or sees on, within about 15 s (C6).
func TestSilentWatch(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	proxy := testserver.StartProxy(t, z.Addr())
	s := openSession(t, use(t, z.URL()), "s", time.Minute)
	held := acquire(t, s, "e")
	began := time.Now()
	for r, err := range use(t, proxy.URL(z.URL())).Watch(deadline(t), "e") {
		if err != nil {
			if took := time.Since(began); took > 25*time.Second { // which leaves room for a busy machine
				t.Errorf("the watch was silent for %v", took)
			}
			t.Logf("%v after: %v", time.Since(began).Round(time.Millisecond), err)
			return
		}
		if r.Token != held.Token {
			t.Fatalf("watch yields %+v", r)
		}
		proxy.Blackhole(testserver.ToClient)
		proxy.Blackhole(testserver.ToServer)
		began = time.Now()
	}
	t.Error("the watch ended without an error")
}

// An administrator ends the session of the leader, and of who waits: the leader stops at once, both come back by themselves (A5, B1).
func TestSessionDropped(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	o := newOffice(t)
	o.Revoked = true
	store := use(t, z.URL())
	for i := range 2 {
		join(t, use(t, z.URL()), o, "e", fmt.Sprint("m", i), 20*time.Second)
	}
	o.AwaitLeader("m")
	for round := range 3 {
		leader := o.Leader()
		terms := len(o.All())
		r, err := store.Get(deadline(t), "e")
		if err != nil || r.Leader != leader {
			t.Fatalf("the leader is %s, and the store says %+v, %v", leader, r, err)
		}
		began := time.Now()
		zookeeper.DropSession(t, r.Session)
		eventually(t, func() string {
			if len(o.All()) == terms {
				return "nobody has taken over"
			}
			return ""
		})
		o.AwaitLeader("m")
		t.Logf("round %d: %v", round, time.Since(began))
		if took := time.Since(began); took > 15*time.Second { // less than the TTL
			t.Errorf("round %d: replaced after %v", round, took)
		}
	}
	// The one that waits.
	operator := connect(t, z.URL())
	waiting := func() (sessions []int64) {
		children, _, err := operator.Children("/e")
		if err != nil {
			return nil
		}
		for _, child := range children {
			_, stat, err := operator.Get("/e/" + child)
			if err == nil {
				sessions = append(sessions, stat.EphemeralOwner)
			}
		}
		return sessions
	}
	eventually(t, func() string {
		if n := len(waiting()); n != 2 {
			return fmt.Sprint(n, " candidates")
		}
		return ""
	})
	r, err := store.Get(deadline(t), "e")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range waiting() {
		session := fmt.Sprintf("0x%x", uint64(id))
		if session == r.Session {
			continue
		}
		zookeeper.DropSession(t, session)
		eventually(t, func() string {
			for _, now := range waiting() {
				if now == id {
					return "its node is still there"
				}
			}
			if n := len(waiting()); n != 2 {
				return fmt.Sprint(n, " candidates")
			}
			return ""
		})
	}
}

// An administrator deletes the leader's node, that of who waits, all nodes, or writes into them (A5, B9).
func TestNodesDeletedAndOverwritten(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	operator := connect(t, z.URL())
	store := use(t, z.URL())
	leader, waiter := openSession(t, store, "leader", time.Minute), openSession(t, use(t, z.URL()), "waiter", time.Minute)
	first := acquire(t, leader, "e")
	path := func(session string) string {
		children, _, err := operator.Children("/e")
		if err != nil {
			t.Fatal(err)
		}
		for _, child := range children {
			_, stat, err := operator.Get("/e/" + child)
			if err == nil && fmt.Sprintf("0x%x", uint64(stat.EphemeralOwner)) == session {
				return "/e/" + child
			}
		}
		t.Fatalf("session %s has no node", session)
		return ""
	}
	if _, err := waiter.Acquire(deadline(t), driver.Bid{Election: "e", Queue: true}); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	// The data changes, the term does not.
	if _, err := operator.Set(path(leader.ID()), []byte("\x01nonsense"), -1); err != nil {
		t.Fatal(err)
	}
	if grant, err := leader.KeepAlive(deadline(t)); err != nil || grant.Holds != nil {
		t.Errorf("data was overwritten, and a renewal says %+v, %v", grant, err)
	}
	if r, err := store.Get(deadline(t), "e"); err != nil || r.Token != first.Token || r.Session != leader.ID() || r.Leader == "" {
		t.Errorf("data was overwritten, and the record is %+v, %v", r, err)
	}
	if r, err := leader.Acquire(deadline(t), driver.Bid{Election: "e", Value: []byte("mended")}); err != nil || r.Token != first.Token {
		t.Errorf("publishing again: %+v, %v", r, err)
	}
	if r, err := store.Get(deadline(t), "e"); err != nil || r.Leader != "leader" || string(r.Value) != "mended" {
		t.Errorf("the record is not mended: %+v, %v", r, err)
	}
	// The waiter's node goes: it has to stand again, and nobody sleeps.
	if err := operator.Delete(path(waiter.ID()), -1); err != nil {
		t.Fatal(err)
	}
	won := make(chan driver.Record, 1)
	go func() {
		r, err := campaign(deadline(t), waiter, "e")
		if err != nil {
			t.Errorf("campaign: %v", err)
		}
		won <- r
	}()
	// The leader's node goes: it is told at once, and the other leads.
	eventually(t, func() string {
		children, _, err := operator.Children("/e")
		if len(children) != 2 {
			return fmt.Sprintf("candidates %q, %v", children, err)
		}
		return ""
	})
	if _, err := leader.KeepAlive(deadline(t)); err != nil { // which the own change has asked for
		t.Fatal(err)
	}
	for drained := false; !drained; {
		select {
		case <-leader.Changed():
		default:
			drained = true
		}
	}
	if err := operator.Delete(path(leader.ID()), -1); err != nil {
		t.Fatal(err)
	}
	select {
	case <-leader.Changed():
	case <-time.After(patience):
		t.Error("nobody has told the leader")
	}
	if grant, err := leader.KeepAlive(deadline(t)); err != nil || grant.Holds == nil || grant.Holds["e"] != 0 {
		t.Errorf("the node was deleted, and a renewal says %+v, %v", grant, err)
	}
	if r := <-won; r.Token <= first.Token {
		t.Errorf("token %d after %d", r.Token, first.Token)
	}
	// Everything goes, also what this package keeps for itself.
	remove(t, operator, "/e")
	remove(t, operator, "/_tenure")
	if grant, err := waiter.KeepAlive(deadline(t)); err != nil || grant.Holds == nil || len(grant.Holds) != 0 {
		t.Errorf("all was deleted, and a renewal says %+v, %v", grant, err)
	}
	if r := acquire(t, waiter, "e"); r.Token <= first.Token {
		t.Errorf("token %d after %d", r.Token, first.Token)
	} else if err := store.Ask(deadline(t), "e", r.Token); err != nil {
		t.Errorf("a request to resign after all was deleted: %v", err)
	}
}

// Containers vanish when they are empty; elections come and go with them, and tokens go on (B9).
func TestContainersVanish(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	operator := connect(t, z.URL())
	s := openSession(t, use(t, z.URL()+"/team/one"), "s", time.Minute)
	var last uint64
	for range 3 {
		r := acquire(t, s, "deep/er/election")
		if r.Token <= last {
			t.Errorf("token %d after %d", r.Token, last)
		}
		last = r.Token
		if err := s.Release(deadline(t), "deep/er/election", r.Token); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() string {
			if there, _, err := operator.Exists("/team/one/deep"); err != nil || there {
				return fmt.Sprintf("the container has not vanished: %v", err)
			}
			return ""
		})
	}
}
