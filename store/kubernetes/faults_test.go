package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
)

// through returns the store's URL with the API server behind another address.
func through(t testing.TB, storeURL, addr string) string {
	t.Helper()
	a := connect(t, storeURL)
	text, err := os.ReadFile(a.config)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(config, []byte(strings.ReplaceAll(string(text), a.server, "https://"+addr)), 0o600); err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(storeURL, strings.ReplaceAll(a.config, "/", "%2F"), strings.ReplaceAll(config, "/", "%2F"))
}

func addrOf(a *api) string { return strings.TrimPrefix(a.server, "https://") }

// startMember starts a replica with a TTL of its own.
func startMember(t testing.TB, url string, o *office, election, name string, ttl time.Duration) replica {
	t.Helper()
	member, err := tenure.Join(t.Context(), open(t, url), tenure.Config{ID: name, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return replica{name, o.Stand(member, election, name)}
}

// The API server, or the etcd behind it, stops for less and for more than the TTL: a term with a lease that outlasts that goes on, one without ends in time and
// somebody leads again by himself.
func TestServerStops(t *testing.T) {
	t.Parallel()
	k := testserver.StartKubernetes(t)
	const short = 4 * time.Second
	long, brief := newOffice(t), newOffice(t)
	startMember(t, k.URL(), long, "long", "long-1", 2*time.Minute)
	for i := range 2 {
		startMember(t, k.URL(), brief, "brief", fmt.Sprint("brief-", i), short)
	}
	long.AwaitLeader("long")
	brief.AwaitLeader("brief")
	for _, fault := range []struct {
		what        string
		begin, stop func()
		lasts       time.Duration
	}{
		{"API server paused for less than the TTL", k.Pause, k.Resume, short / 4},
		{"API server paused for more than the TTL", k.Pause, k.Resume, 2 * short},
		{"API server killed and started again", k.Kill, k.Start, 0},
		{"API server killed for more than the TTL", k.Kill, k.Start, 2 * short},
		{"etcd paused for more than the TTL", k.PauseEtcd, k.ResumeEtcd, 2 * short},
		{"etcd killed and started again", k.KillEtcd, k.StartEtcd, 0},
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
	// Both still follow: the one that leads goes, and the other has it.
	eventually(t, func() string {
		if brief.Leader() == "" {
			return "nobody leads"
		}
		return ""
	})
}

// Connections of one member swallow what goes one way. It stops in time, another takes over, and it comes back.
func TestBlackHole(t *testing.T) {
	for _, direction := range []testserver.Direction{testserver.ToServer, testserver.ToClient} {
		t.Run(map[testserver.Direction]string{testserver.ToServer: "requests", testserver.ToClient: "answers"}[direction], func(t *testing.T) {
			t.Parallel()
			url, a, o := newFleet(t)
			proxy := testserver.StartProxy(t, addrOf(a))
			const ttl = 5 * time.Second
			startMember(t, through(t, url, proxy.Addr()), o, "orders", "far", ttl)
			o.AwaitLeader("far")
			near := startMember(t, url, o, "orders", "near", ttl)
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
	url, a, _ := newFleet(t)
	proxy := testserver.StartProxy(t, addrOf(a))
	store := open(t, through(t, url, proxy.Addr()))
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
		t.Errorf("noticed after %v; want about 10 s", took)
	}
	proxy.Heal()
	for r, err := range store.Watch(t.Context(), "orders") {
		if err == nil && !r.Held() {
			return
		}
		t.Fatalf("a new watch begins with %+v, %v", r, err)
	}
}

// A connection that died while a leader was silent costs it one renewal, not its term: the next renewal takes another.
func TestDeadConnectionCostsOneRenewal(t *testing.T) {
	t.Parallel()
	url, a, o := newFleet(t)
	proxy := testserver.StartProxy(t, addrOf(a))
	startMember(t, through(t, url, proxy.Addr()), o, "orders", "far", 30*time.Second)
	o.AwaitLeader("far")
	before := proxy.Connections()
	proxy.Blackhole(testserver.ToClient)
	eventually(t, func() string { // the member gives the connection up
		if proxy.Connections() < before || proxy.Connections() > before {
			return ""
		}
		return "the dead connection is still there"
	})
	proxy.Drop()
	proxy.Heal()
	time.Sleep(25 * time.Second) // what was left of the lease has to pass
	if got := o.All(); len(got) != 1 || o.Leader() != "far" {
		t.Errorf("the terms are %v and the leader is %q; want one term that goes on", got, o.Leader())
	}
}

// vacated has a session wait for an election until it is vacant, so that its next Acquire is one write. It returns the term that has ended.
func vacated(t testing.TB, session, other driver.Session) driver.Record {
	t.Helper()
	r := acquire(t, other, "orders")
	if _, err := session.Acquire(t.Context(), driver.Bid{Election: "orders", Queue: true}); !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("Acquire: %v; want ErrHeld", err)
	}
	if err := other.Release(t.Context(), "orders", r.Token); err != nil {
		t.Fatal(err)
	}
	if err := session.Await(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	return r
}

// The answer to a request is lost after its effect. Asking again finds the truth.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	url, a, _ := newFleet(t)
	proxy := testserver.StartProxy(t, addrOf(a))
	far, near := open(t, through(t, url, proxy.Addr())), open(t, url)
	session, err := far.Open(t.Context(), "far", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	other, err := near.Open(t.Context(), "near", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	lost := func(what string, call func(context.Context) error, done func(spec map[string]any) bool) {
		t.Helper()
		proxy.Blackhole(testserver.ToClient)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%s: %v; want its answer to be lost", what, err)
		}
		eventually(t, func() string {
			if spec := a.do(t, http.MethodGet, a.lease("orders"), nil)["spec"].(map[string]any); !done(spec) {
				return fmt.Sprintf("%s had no effect: %v", what, spec)
			}
			return ""
		})
		proxy.Drop()
		proxy.Heal()
	}
	first := vacated(t, session, other)
	held := func(spec map[string]any) bool { return spec["holderIdentity"] == session.ID() }
	lost("Acquire", func(ctx context.Context) error {
		_, err := session.Acquire(ctx, driver.Bid{Election: "orders", Value: []byte("v")})
		return err
	}, held)
	won, err := near.Get(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if grant, err := session.KeepAlive(t.Context()); err != nil || grant.Holds["orders"] != won.Token {
		t.Errorf("after a lost Acquire: %+v, %v; want token %d told", grant, err, won.Token)
	}
	if again := acquire(t, session, "orders"); again.Token != won.Token || again.Token <= first.Token {
		t.Errorf("Acquire again: token %d; want %d, after %d", again.Token, won.Token, first.Token)
	}
	renewed := a.do(t, http.MethodGet, a.lease("orders"), nil)["spec"].(map[string]any)["renewTime"]
	lost("KeepAlive", func(ctx context.Context) error {
		_, err := session.KeepAlive(ctx)
		return err
	}, func(spec map[string]any) bool { return spec["renewTime"] != renewed })
	if grant, err := session.KeepAlive(t.Context()); err != nil || grant.Holds != nil {
		t.Errorf("after a lost KeepAlive: %+v, %v", grant, err)
	}
	lost("Release", func(ctx context.Context) error { return session.Release(ctx, "orders", won.Token) },
		func(spec map[string]any) bool { return spec["holderIdentity"] == "" })
	next := acquire(t, other, "orders")
	if err := session.Release(t.Context(), "orders", won.Token); err != nil {
		t.Errorf("Release again: %v", err)
	}
	if err := session.Release(t.Context(), "orders", 0); err != nil {
		t.Errorf("Release of anything: %v", err)
	}
	if got, err := near.Get(t.Context(), "orders"); err != nil || got.Session != other.ID() || got.Token != next.Token || next.Token <= won.Token {
		t.Errorf("the record is %+v, %v; want %+v", got, err, next)
	}
}

// A release after an acquire that nobody knows the outcome of keeps that from having an effect later.
func TestAbandonedAcquireCannotComeTrue(t *testing.T) {
	t.Parallel()
	url, a, _ := newFleet(t)
	proxy := testserver.StartProxy(t, addrOf(a))
	session, err := open(t, through(t, url, proxy.Addr())).Open(t.Context(), "far", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	other, err := open(t, url).Open(t.Context(), "near", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	vacated(t, session, other)
	proxy.Delay(testserver.ToServer, 2*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := session.Acquire(ctx, driver.Bid{Election: "orders"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Acquire: %v; want it to be under way still", err)
	}
	proxy.Heal()
	if err := session.Release(t.Context(), "orders", 0); err != nil {
		t.Fatal(err)
	}
	time.Sleep(4 * time.Second) // the delayed write arrives meanwhile, if it still does
	if holder := a.do(t, http.MethodGet, a.lease("orders"), nil)["spec"].(map[string]any)["holderIdentity"]; holder != "" {
		t.Errorf("%q holds what it has released", holder)
	}
}

// A thousand campaigns that are cancelled while they wait leave no goroutine and no connection behind.
func TestCancelledCampaignsLeaveNothing(t *testing.T) {
	url, a, _ := newFleet(t) // alone: it counts the goroutines of the process
	proxy := testserver.StartProxy(t, addrOf(a))
	holder, err := open(t, url).Open(t.Context(), "holder", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	acquire(t, holder, "orders")
	member, err := tenure.Join(t.Context(), open(t, through(t, url, proxy.Addr())), tenure.Config{ID: "m"})
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
	goroutines, connections := runtime.NumGoroutine(), proxy.Connections()
	for i := range 1000 {
		cycle(i)
	}
	eventually(t, func() string {
		if g, c := runtime.NumGoroutine(), proxy.Connections(); g > goroutines+10 || c > connections+2 {
			return fmt.Sprintf("%d goroutines became %d, %d connections %d", goroutines, g, connections, c)
		}
		return ""
	})
	if err := member.Leave(t.Context()); err != nil {
		t.Error(err)
	}
	if holder := a.do(t, http.MethodGet, a.lease("orders"), nil)["spec"].(map[string]any)["holderIdentity"]; !strings.HasPrefix(holder.(string), "holder_") {
		t.Errorf("%q holds the election", holder)
	}
}

// A Lease that nobody has written for long has a version that the server does not watch from any more. It is watched all the same.
func TestOldLeaseIsWatched(t *testing.T) {
	t.Parallel()
	k := testserver.StartKubernetes(t)
	etcdctl := testserver.EtcdProgram(t, "etcdctl")
	store := open(t, k.URL())
	s := openSession(t, store, "m")
	old := acquire(t, s, "old")
	if err := s.Release(t.Context(), "old", old.Token); err != nil {
		t.Fatal(err)
	}
	newest := acquire(t, s, "new")
	if out, err := exec.Command(etcdctl, "--endpoints="+k.EtcdEndpoint(), "compact", fmt.Sprint(newest.Token)).CombinedOutput(); err != nil {
		t.Fatalf("compact: %v\n%s", err, out)
	}
	k.Kill() // with it goes the API server's own memory of what happened
	k.Start()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	first := true
	for r, err := range store.Watch(ctx, "old") {
		switch {
		case err != nil:
			t.Fatal(err)
		case first && !r.Held() && r.Token == old.Token:
			first = false
			acquire(t, openSession(t, open(t, k.URL()), "other"), "old")
		case !first && r.Leader == "other" && r.Token > old.Token:
			return
		default:
			t.Fatalf("the watch yields %+v", r)
		}
	}
}
