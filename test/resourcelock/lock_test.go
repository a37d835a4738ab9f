package resourcelock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/leaderelection"
	client "k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/kubernetes"
	"github.com/gotenure/tenure/store/kubernetes/resourcelock"
	"github.com/gotenure/tenure/store/postgres"
)

func init() { klog.SetLogger(logr.Discard()) } // client-go's elections log to it

const (
	patience = 60 * time.Second
	ttl      = 6 * time.Second
)

// stores are the stores that electors elect through here: one without a Lease, and the other.
func stores(t *testing.T) map[string]driver.Store {
	t.Helper()
	p, err := postgres.Open(t.Context(), testserver.PostgresURL(t))
	if err != nil {
		t.Fatal(err)
	}
	k, err := kubernetes.Open(t.Context(), testserver.KubernetesURL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(); _ = k.Close() })
	return map[string]driver.Store{"postgres": p, "kubernetes": k}
}

// An office checks that one leads at a time.
type office struct {
	t  *testing.T
	mu sync.Mutex
	in string
}

func (o *office) enter(who string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.in != "" {
		o.t.Errorf("%s leads while %s does", who, o.in)
	}
	o.in = who
}

func (o *office) leave(who string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.in == who {
		o.in = ""
	}
}

func (o *office) await(who string) {
	o.t.Helper()
	for end := time.Now().Add(patience); ; {
		o.mu.Lock()
		in := o.in
		o.mu.Unlock()
		if in == who {
			return
		}
		if time.Now().After(end) {
			o.t.Fatalf("%q leads; want %q", in, who)
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
}

// An elector is client-go's, through a store.
type elector struct {
	lock *resourcelock.Lock
	stop func()
	done chan struct{}
}

func start(t *testing.T, store driver.Store, o *office, election, name string) *elector {
	t.Helper()
	lock, err := resourcelock.New(store, election, name, ttl)
	if err != nil {
		t.Fatal(err)
	}
	le, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: ttl, RenewDeadline: ttl / 2, RetryPeriod: ttl / 12, ReleaseOnCancel: true, Name: election,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				if ctx.Err() == nil {
					o.enter(name)
				}
			},
			OnStoppedLeading: func() { o.leave(name) },
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &elector{lock: lock, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		le.Run(ctx)
	}()
	e.stop = sync.OnceFunc(func() {
		o.leave(name) // the work ends before the release
		cancel()
		<-e.done
	})
	t.Cleanup(e.stop)
	return e
}

func TestElectorsTakeTurns(t *testing.T) {
	for kind, store := range stores(t) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			o, election := &office{t: t}, fmt.Sprint("turns-", time.Now().UnixNano())
			a := start(t, store, o, election, "a")
			o.await("a")
			first := a.lock.Token()
			b := start(t, store, o, election, "b")
			// Longer than a lease: an elector must not take the leader for dead, and it must renew.
			time.Sleep(ttl + ttl/2)
			o.await("a")
			if got := a.lock.Token(); got != first || first == 0 {
				t.Errorf("the token was %d and is %d", first, got)
			}
			a.stop()
			o.await("b")
			if b.lock.Token() <= first {
				t.Errorf("token %d after %d", b.lock.Token(), first)
			}
			// A member of this library stands in the same election.
			member, err := tenure.Join(t.Context(), store, tenure.Config{ID: "member", TTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := member.TryCampaign(t.Context(), election); !errors.Is(err, tenure.ErrHeld) {
				t.Errorf("TryCampaign while an elector leads: %v", err)
			}
			b.stop()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if _, err := member.Campaign(ctx, election); err != nil {
				t.Error(err)
			}
			if err := member.Leave(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// Two processes of one identity: client-go's own lock has both lead.
func TestSameIdentityTwice(t *testing.T) {
	for kind, store := range stores(t) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			election := fmt.Sprint("twins-", time.Now().UnixNano())
			one, two := &office{t: t}, &office{t: t}
			first := start(t, store, one, election, "twin")
			one.await("twin")
			second := start(t, store, two, election, "twin")
			// Both poll in this time.
			time.Sleep(ttl)
			two.await("")
			one.await("twin")
			if second.lock.Token() != 0 {
				t.Error("the second has a token")
			}
			first.stop()
			two.await("twin")
		})
	}
}

// An elector whose term somebody else has ended stops, and does not go on with another term as if nothing had happened.
func TestLostTermEndsTheElector(t *testing.T) {
	for kind, store := range stores(t) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			asker, ok := store.(driver.Asker)
			if !ok {
				t.Fatal("nobody can be asked")
			}
			o, election := &office{t: t}, fmt.Sprint("lost-", time.Now().UnixNano())
			e := start(t, store, o, election, "a")
			o.await("a")
			if err := asker.Ask(t.Context(), election, e.lock.Token()); err != nil {
				t.Fatal(err)
			}
			select {
			case <-e.done:
			case <-time.After(patience):
				t.Fatal("the elector goes on")
			}
			o.await("")
		})
	}
}

func TestRefusals(t *testing.T) {
	for kind, store := range stores(t) {
		for _, bad := range []struct {
			election, identity string
			ttl                time.Duration
		}{{"", "a", ttl}, {"e", "", ttl}, {"e", "a", 0}, {"e", "a", 1000 * time.Hour}} {
			if _, err := resourcelock.New(store, bad.election, bad.identity, bad.ttl); !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("%s: New(%q, %q, %v): %v; want ErrInvalid", kind, bad.election, bad.identity, bad.ttl, err)
			}
		}
		lock, err := resourcelock.New(store, "e", "a", ttl)
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Update(t.Context(), client.LeaderElectionRecord{HolderIdentity: "b"}); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: Update for another: %v; want ErrInvalid", kind, err)
		}
		if lock.Identity() != "a" || lock.Describe() != kind+"/e" {
			t.Errorf("the lock is %s of %s", lock.Describe(), lock.Identity())
		}
	}
}
