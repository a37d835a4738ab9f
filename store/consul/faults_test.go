package consul_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
)

// through returns the store URL of a server behind another address.
func through(addr string) string { return "consul://" + addr + "?min-ttl=1s" }

// The server stops for less and for more than the TTL: a term with a lease that outlasts that goes on, one without ends in time and somebody leads again by
// himself.
func TestServerStops(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t)
	const short = 3 * time.Second
	long, brief := newOffice(t), newOffice(t)
	startMember(t, server.URL(), long, "long", "long-1", 2*time.Minute)
	for i := range 2 {
		startMember(t, server.URL(), brief, "brief", fmt.Sprint("brief-", i), short)
	}
	long.AwaitLeader("long")
	brief.AwaitLeader("brief")
	for _, fault := range []struct {
		what        string
		begin, stop func()
		lasts       time.Duration
	}{
		{"paused for less than the TTL", server.Pause, server.Resume, short / 4},
		{"paused for more than the TTL", server.Pause, server.Resume, 2 * short},
		{"killed and started again", server.Kill, server.Start, 0},
		{"killed for more than the TTL", server.Kill, server.Start, 2 * short},
	} {
		before := len(brief.All())
		fault.begin()
		time.Sleep(fault.lasts) // the fault has to last
		if fault.lasts > short && brief.Leader() != "" {
			t.Errorf("%s: %s leads on although its lease has ended", fault.what, brief.Leader())
		}
		fault.stop()
		healed := time.Now()
		brief.AwaitLeader("brief")
		t.Logf("%s: led again %v after it was over, terms %d to %d", fault.what, time.Since(healed).Round(time.Millisecond), before, len(brief.All()))
		if got := long.All(); len(got) != 1 || long.Leader() == "" {
			t.Errorf("%s: the terms with a lease of two minutes are %v, and the leader is %q; want one that goes on", fault.what, got, long.Leader())
		}
	}
}

// Connections of one member swallow what goes one way. It stops in time, another takes over, and it comes back.
func TestBlackHole(t *testing.T) {
	for _, direction := range []testserver.Direction{testserver.ToServer, testserver.ToClient} {
		t.Run(map[testserver.Direction]string{testserver.ToServer: "requests", testserver.ToClient: "answers"}[direction], func(t *testing.T) {
			t.Parallel()
			server := testserver.StartConsul(t)
			proxy := testserver.StartProxy(t, server.Addr())
			o := newOffice(t)
			const ttl = 3 * time.Second
			startMember(t, through(proxy.Addr()), o, "orders", "far", ttl)
			o.AwaitLeader("far")
			near := startMember(t, server.URL(), o, "orders", "near", ttl)
			proxy.Blackhole(direction)
			o.AwaitLeader("near")
			proxy.Heal()
			near.stop()
			o.AwaitLeader("far")
		})
	}
}

// A watch whose connection is dead says so, although nothing else shows it.
func TestDeadWatchIsNoticed(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t)
	proxy := testserver.StartProxy(t, server.Addr())
	store := open(t, through(proxy.Addr()))
	first := true
	var cut time.Time
	for _, err := range store.Watch(t.Context(), "orders") {
		if err != nil {
			break
		}
		if !first {
			t.Fatal("a second state, although nothing has happened")
		}
		first = false
		proxy.Blackhole(testserver.ToClient)
		cut = time.Now()
	}
	if took := time.Since(cut); took > 25*time.Second {
		t.Errorf("noticed after %v; want about 14 s", took)
	}
	proxy.Drop()
	proxy.Heal()
	for r, err := range store.Watch(t.Context(), "orders") {
		if err == nil && !r.Held() {
			return
		}
		t.Fatalf("a new watch begins with %+v, %v", r, err)
	}
}

// The answer to a request is lost after its effect. Asking again finds the truth.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t)
	proxy := testserver.StartProxy(t, server.Addr())
	near := open(t, server.URL())
	far, other := session(t, open(t, through(proxy.Addr())), "far", time.Minute), session(t, near, "near", time.Minute)
	lost := func(what string, call func(context.Context) error, done func(driver.Record) bool) {
		t.Helper()
		proxy.Blackhole(testserver.ToClient)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%s: %v; want its answer to be lost", what, err)
		}
		eventually(t, func() string {
			if r, err := near.Get(t.Context(), "orders"); err != nil || !done(r) {
				return fmt.Sprintf("%s had no effect: %+v, %v", what, r, err)
			}
			return ""
		})
		proxy.Drop()
		proxy.Heal()
	}
	first := vacated(t, far, other)
	lost("Acquire", func(ctx context.Context) error {
		_, err := far.Acquire(ctx, driver.Bid{Election: "orders", Value: []byte("v")})
		return err
	}, func(r driver.Record) bool { return r.Session == far.ID() })
	won, err := near.Get(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if grant, err := far.KeepAlive(t.Context()); err != nil || grant.Holds["orders"] != won.Token {
		t.Errorf("after a lost Acquire: %+v, %v; want token %d told", grant, err, won.Token)
	}
	if again := acquire(t, far, "orders", "v"); again.Token != won.Token || again.Token <= first.Token {
		t.Errorf("Acquire again: token %d; want %d, after %d", again.Token, won.Token, first.Token)
	}
	lost("publishing", func(ctx context.Context) error {
		_, err := far.Acquire(ctx, driver.Bid{Election: "orders", Value: []byte("w")})
		return err
	}, func(r driver.Record) bool { return string(r.Value) == "w" })
	if grant, err := far.KeepAlive(t.Context()); err != nil || grant.Holds != nil {
		t.Errorf("after a lost publishing: %+v, %v; want nothing told, for the term goes on", grant, err)
	}
	if again := acquire(t, far, "orders", "w"); again.Token != won.Token {
		t.Errorf("publishing changed the token from %d to %d", won.Token, again.Token)
	}
	lost("KeepAlive", func(ctx context.Context) error {
		_, err := far.KeepAlive(ctx)
		return err
	}, func(driver.Record) bool { return true })
	if grant, err := far.KeepAlive(t.Context()); err != nil || grant.Holds != nil {
		t.Errorf("after a lost KeepAlive: %+v, %v", grant, err)
	}
	lost("Release", func(ctx context.Context) error { return far.Release(ctx, "orders", won.Token) }, func(r driver.Record) bool { return !r.Held() })
	next := acquire(t, other, "orders", "x")
	if err := far.Release(t.Context(), "orders", won.Token); err != nil {
		t.Errorf("Release again: %v", err)
	}
	if err := far.Release(t.Context(), "orders", 0); err != nil {
		t.Errorf("Release of anything: %v", err)
	}
	if got, err := near.Get(t.Context(), "orders"); err != nil || got.Session != other.ID() || got.Token != next.Token || next.Token <= won.Token {
		t.Errorf("the record is %+v, %v; want %+v", got, err, next)
	}
}

// vacated has a session wait for an election until it is vacant, so that its next Acquire is one write. It returns the term that has ended.
func vacated(t testing.TB, waiter, holder driver.Session) driver.Record {
	t.Helper()
	r := acquire(t, holder, "orders", "h")
	if _, err := waiter.Acquire(t.Context(), driver.Bid{Election: "orders", Queue: true}); !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("Acquire: %v; want ErrHeld", err)
	}
	if err := holder.Release(t.Context(), "orders", r.Token); err != nil {
		t.Fatal(err)
	}
	if err := waiter.Await(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	return r
}

func acquire(t testing.TB, s driver.Session, election, value string) driver.Record {
	t.Helper()
	r, err := s.Acquire(t.Context(), driver.Bid{Election: election, Value: []byte(value)})
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return r
}

// A release after an acquire that nobody knows the outcome of keeps that from having an effect later, whether or not there was a key before.
func TestAbandonedAcquireCannotComeTrue(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		t.Run(fmt.Sprint("fresh=", fresh), func(t *testing.T) {
			t.Parallel()
			server := testserver.StartConsul(t)
			proxy := testserver.StartProxy(t, server.Addr())
			near := open(t, server.URL())
			far, other := session(t, open(t, through(proxy.Addr())), "far", time.Minute), session(t, near, "near", time.Minute)
			vacated(t, far, other)
			if fresh {
				if _, err := client(t, server.URL()).KV().Delete("orders", nil); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 0)
				defer cancel()
				_, _ = far.Acquire(ctx, driver.Bid{Election: "orders"}) // forgets what it has seen
			}
			proxy.Delay(testserver.ToServer, 2*time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // of a fresh one, the read takes two
			defer cancel()
			if !fresh {
				ctx, cancel = context.WithTimeout(t.Context(), time.Second)
				defer cancel()
			}
			if _, err := far.Acquire(ctx, driver.Bid{Election: "orders"}); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("Acquire: %v; want it to be under way still", err)
			}
			proxy.Heal()
			if err := far.Release(t.Context(), "orders", 0); err != nil {
				t.Fatal(err)
			}
			time.Sleep(4 * time.Second) // the delayed write arrives meanwhile, if it still does
			if r, err := near.Get(t.Context(), "orders"); err != nil || r.Held() {
				t.Errorf("the record is %+v, %v; want what was released to be vacant", r, err)
			}
		})
	}
}

// A session is told at once that an administrator has destroyed it.
func TestSessionIsToldOfItsEnd(t *testing.T) {
	t.Parallel()
	url := testserver.ConsulURL(t)
	s := session(t, open(t, url+"&prefix=told/"), "m", 10*time.Minute)
	r := acquire(t, s, "orders", "v")
	time.Sleep(100 * time.Millisecond) // its watch begins
	if _, err := client(t, url).Session().Destroy(s.ID(), nil); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Changed():
	case <-time.After(patience):
		t.Error("not told")
	}
	if _, err := s.KeepAlive(t.Context()); !errors.Is(err, driver.ErrSessionLost) {
		t.Errorf("KeepAlive: %v; want ErrSessionLost", err)
	}
	if err := s.Release(t.Context(), "orders", r.Token); err != nil {
		t.Errorf("Release: %v", err)
	}
}

// An administrator destroys sessions, of a leader and of a member that waits.
func TestSessionDestroyed(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t)
	admin := client(t, server.URL())
	o := newOffice(t)
	o.Revoked = true
	destroy := func(member string) {
		t.Helper()
		sessions, _, err := admin.Session().List(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sessions {
			if s.Name == member {
				if _, err := admin.Session().Destroy(s.ID, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	const ttl = 4 * time.Second
	startMember(t, server.URL(), o, "orders", "a", ttl)
	o.AwaitLeader("a")
	b := startMember(t, server.URL(), o, "orders", "b", ttl)
	destroy("b") // which waits
	destroy("a") // which leads
	eventually(t, func() string {
		if got := o.All(); len(got) < 2 || o.Leader() == "" {
			return fmt.Sprintf("the terms are %v", got)
		}
		return ""
	})
	b.stop()
	o.AwaitLeader("a")
}

// An administrator deletes the key of an election, and its leader's own.
func TestDeleted(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t)
	admin := client(t, server.URL())
	o := newOffice(t)
	startMember(t, server.URL(), o, "orders", "a", 6*time.Second)
	o.AwaitLeader("a")
	if _, err := admin.KV().DeleteTree("", nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		if got := o.All(); len(got) < 2 || o.Leader() == "" {
			return fmt.Sprintf("the terms are %v; want that one has ended and another begun", got)
		}
		return ""
	})
	// The session's own key comes back, so that its member can be asked to resign.
	store := open(t, server.URL())
	eventually(t, func() string {
		r, err := store.Get(t.Context(), "orders")
		if err == nil {
			err = store.Ask(t.Context(), "orders", r.Token)
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
	eventually(t, func() string {
		if got := o.All(); len(got) < 3 {
			return fmt.Sprintf("the terms are %v; want that the leader resigned when it was asked", got)
		}
		return ""
	})
}

// Somebody makes another session the holder: one that stands in the election itself, as the contract has it, and one that does not.
func TestOverwritten(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t)
	admin := client(t, server.URL()).KV()
	store := open(t, server.URL())
	s, waits := session(t, store, "s", time.Minute), session(t, store, "waits", time.Minute)
	held := acquire(t, s, "orders", "v")
	if _, err := waits.Acquire(t.Context(), driver.Bid{Election: "orders"}); !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("Acquire: %v", err)
	}
	if ok, _, err := admin.Release(&api.KVPair{Key: "orders", Session: s.ID(), Flags: api.LockFlagValue}, nil); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if ok, _, err := admin.Acquire(&api.KVPair{Key: "orders", Session: waits.ID(), Flags: api.LockFlagValue}, nil); err != nil || !ok {
		t.Fatal(ok, err)
	}
	now, err := store.Get(t.Context(), "orders")
	if err != nil || now.Session != waits.ID() || now.Token <= held.Token {
		t.Fatalf("the record is %+v, %v", now, err)
	}
	if grant, err := s.KeepAlive(t.Context()); err != nil || grant.Holds == nil || len(grant.Holds) > 0 {
		t.Errorf("the former holder is told %+v, %v; want that it holds nothing", grant, err)
	}
	if grant, err := waits.KeepAlive(t.Context()); err != nil || grant.Holds["orders"] != now.Token {
		t.Errorf("the new holder is told %+v, %v; want token %d", grant, err, now.Token)
	}
	if err := waits.Await(t.Context(), "orders"); err != nil {
		t.Errorf("Await of the new holder: %v", err)
	}
	for _, token := range []uint64{held.Token, 0} {
		if err := s.Release(t.Context(), "orders", token); err != nil {
			t.Error(err)
		}
	}
	if got := acquire(t, waits, "orders", ""); got.Token != now.Token {
		t.Errorf("the new holder acquires token %d; want %d, which it has", got.Token, now.Token)
	}
	// A value that somebody writes with a plain put, which leaves the lock as it is, begins another term.
	if _, err := admin.Put(&api.KVPair{Key: "orders", Value: []byte("by hand"), Flags: api.LockFlagValue}, nil); err != nil {
		t.Fatal(err)
	}
	if grant, err := waits.KeepAlive(t.Context()); err != nil || grant.Holds["orders"] <= now.Token {
		t.Errorf("after a put by hand the holder is told %+v, %v; want a token above %d", grant, err, now.Token)
	}
}

// All requests fail with 500 for a while that is shorter than the lease: that costs nothing. What the proxy lets through goes to a real server.
func TestServerErrorsCostNothing(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t)
	target, err := url.Parse("http://" + server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	var failing atomic.Bool
	var failed, renewed atomic.Int64 // renewals
	next := httputil.NewSingleHostReverseProxy(target)
	next.ErrorLog = log.New(io.Discard, "", 0) // it says of each wait that was given up
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		renewal := strings.HasPrefix(r.URL.Path, "/v1/session/renew/")
		if failing.Load() {
			if renewal {
				failed.Add(1)
			}
			http.Error(w, "No cluster leader", http.StatusInternalServerError)
			return
		}
		next.ServeHTTP(w, r)
		if renewal {
			renewed.Add(1)
		}
	}))
	t.Cleanup(front.Close)
	o := newOffice(t)
	const ttl = 10 * time.Second
	addr := through(front.Listener.Addr().String())
	a := startMember(t, addr, o, "orders", "a", ttl)
	o.AwaitLeader("a")
	startMember(t, addr, o, "orders", "b", ttl)
	for range 2 {
		// Each burst lasts until renewals have met it, and no longer: that is well within a lease.
		before := failed.Load()
		failing.Store(true)
		eventually(t, func() string {
			if failed.Load() < before+2 {
				return "no renewals have failed"
			}
			return ""
		})
		before = renewed.Load()
		failing.Store(false)
		eventually(t, func() string {
			if renewed.Load() < before+2 {
				return "no renewals have worked since"
			}
			return ""
		})
	}
	if got := o.All(); len(got) != 1 || o.Leader() != "a" {
		t.Errorf("the terms are %v and the leader is %q; want one term that goes on", got, o.Leader())
	}
	a.stop()
	o.AwaitLeader("b")
}

// A thousand campaigns that are cancelled while they wait leave no goroutine, no connection and no session behind.
func TestCancelledCampaignsLeaveNothing(t *testing.T) {
	server := testserver.StartConsul(t) // alone: it counts the goroutines of the process
	proxy := testserver.StartProxy(t, server.Addr())
	admin := client(t, server.URL())
	holder := session(t, open(t, server.URL()), "holder", time.Hour)
	acquire(t, holder, "orders", "v")
	member, err := tenure.Join(t.Context(), open(t, through(proxy.Addr())), tenure.Config{ID: "m"})
	if err != nil {
		t.Fatal(err)
	}
	cycle := func(i int) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%10)*time.Millisecond)
		defer cancel()
		if _, err := member.Campaign(ctx, "orders"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Campaign: %v; want the context's error", err)
		}
	}
	for i := range 50 {
		cycle(i) // pools fill
	}
	sessions := func() int {
		all, _, err := admin.Session().List(nil)
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	goroutines, connections, before := runtime.NumGoroutine(), proxy.Connections(), sessions()
	for i := range 1000 {
		cycle(i)
	}
	eventually(t, func() string {
		if g, c, s := runtime.NumGoroutine(), proxy.Connections(), sessions(); g > goroutines+10 || c > connections+5 || s > before {
			return fmt.Sprintf("%d goroutines became %d, %d connections %d, %d sessions %d", goroutines, g, connections, c, before, s)
		}
		return ""
	})
	if err := member.Leave(t.Context()); err != nil {
		t.Error(err)
	}
	if left := sessions(); left != 1 {
		t.Errorf("%d sessions are left; want the holder's", left)
	}
}

// An administrator puts back what the key had in an earlier term. Tokens grow all the same (S1).
func TestEarlierTokenIsPutBack(t *testing.T) {
	t.Parallel()
	url := testserver.ConsulURL(t)
	kv := client(t, url).KV()
	election := fmt.Sprint("put-back-", time.Now().UnixNano())
	s := session(t, open(t, url), "member", time.Minute)
	acquire := func(value string) driver.Record {
		t.Helper()
		r, err := s.Acquire(t.Context(), driver.Bid{Election: election, Value: []byte(value)})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := acquire("a")
	acquire("b")
	earlier, _, err := kv.Get(election, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context(), election, first.Token); err != nil {
		t.Fatal(err)
	}
	second := acquire("c")
	if _, err := kv.Put(&api.KVPair{Key: election, Value: earlier.Value, Flags: earlier.Flags}, nil); err != nil {
		t.Fatal(err)
	}
	grant, err := s.KeepAlive(t.Context())
	if err != nil || grant.Holds == nil || grant.Holds[election] == second.Token {
		t.Errorf("Holds is %v, %v; want that the term with token %d is over", grant.Holds, err, second.Token)
	}
	third := acquire("b")
	if third.Token <= second.Token {
		t.Errorf("token %d after %d", third.Token, second.Token)
	}
	if again := acquire("d"); again.Token != third.Token {
		t.Errorf("another value has the token %d; want %d", again.Token, third.Token)
	}
	if grant, err := s.KeepAlive(t.Context()); err != nil || grant.Holds != nil {
		t.Errorf("Holds is %v, %v; want nil", grant.Holds, err)
	}
}
