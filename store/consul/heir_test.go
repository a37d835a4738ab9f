package consul_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
)

// heirs returns the keys of heirs that are locked.
func heirs(t testing.TB, admin *api.Client) (keys api.KVPairs) {
	t.Helper()
	all, _, err := admin.KV().List("_tenure/members/", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range all {
		if strings.Count(entry.Key, "/") > 3 && entry.Session != "" {
			keys = append(keys, entry)
		}
	}
	return keys
}

// awaitHeir waits until a session is the heir of the one leader there is.
func awaitHeir(t testing.TB, admin *api.Client, session string) {
	t.Helper()
	eventually(t, func() string {
		if keys := heirs(t, admin); len(keys) != 1 || keys[0].Session != session {
			return fmt.Sprintf("the heirs are %v; want %s", keys, session)
		}
		return ""
	})
	time.Sleep(100 * time.Millisecond) // the leader's watch tells it; without that it would only unlock
}

// wait queues and waits until the session holds the election, in the background.
func wait(ctx context.Context, s driver.Session, election string) <-chan driver.Record {
	won := make(chan driver.Record, 1)
	go func() {
		defer close(won)
		for ctx.Err() == nil {
			r, err := s.Acquire(ctx, bid(election))
			if err == nil {
				won <- r
				return
			}
			if errors.Is(err, driver.ErrHeld) {
				err = s.Await(ctx, election)
			}
			if errors.Is(err, driver.ErrSessionLost) {
				return
			}
		}
	}()
	return won
}

// A leader that resigns gives the election to its heir in the write by which it leaves: one write, and there is no moment at which it is vacant.
func TestHeir(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t)
	admin, store := client(t, server.URL()), open(t, server.URL())
	leader := session(t, store, "leader", time.Minute)
	held := acquire(t, leader, "orders/1", "")
	for range 4 {
		heir := session(t, open(t, server.URL()), "heir", time.Minute)
		won := wait(t.Context(), heir, "orders/1")
		awaitHeir(t, admin, heir.ID())
		other, cancel := context.WithCancel(t.Context())
		loser := session(t, store, "loser", time.Minute)
		lost := wait(other, loser, "orders/1")
		states := make(chan driver.Record, 16)
		watching, stop := context.WithCancel(t.Context())
		go func() {
			defer close(states)
			for r, err := range store.Watch(watching, "orders/1") {
				if err != nil {
					return
				}
				states <- r
			}
		}()
		<-states
		if err := leader.Release(t.Context(), "orders/1", held.Token); err != nil {
			t.Fatal(err)
		}
		r := <-won
		if r.Token <= held.Token || r.Session != heir.ID() {
			t.Fatalf("%+v after token %d", r, held.Token)
		}
		if state := <-states; state.Session != heir.ID() || state.Token != r.Token {
			t.Errorf("the next state is %+v; want the heir's", state)
		}
		stop()
		cancel()
		if r, ok := <-lost; ok {
			t.Errorf("the other candidate has won: %+v", r)
		}
		if err := loser.Release(t.Context(), "orders/1", 0); err != nil {
			t.Fatal(err)
		}
		for _, s := range []driver.Session{leader, loser} {
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, func() string {
			if keys := heirs(t, admin); len(keys) != 0 {
				return fmt.Sprintf("%v are left", keys)
			}
			return ""
		})
		leader, held = heir, r
	}
}

// Who does not wait any more is not given the election, and what was given at that moment is given back.
func TestHeirLeaves(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t)
	admin, store := client(t, server.URL()), open(t, server.URL())
	for _, together := range []bool{false, true} {
		for range 5 {
			leader, heir := session(t, store, "leader", time.Minute), session(t, open(t, server.URL()), "heir", time.Minute)
			held := acquire(t, leader, "orders", "")
			ctx, cancel := context.WithCancel(t.Context())
			won := wait(ctx, heir, "orders")
			awaitHeir(t, admin, heir.ID())
			leaves := func() error {
				cancel()
				<-won
				return heir.Release(t.Context(), "orders", 0)
			}
			left := make(chan error, 1)
			if together {
				go func() { left <- leaves() }()
			} else {
				left <- leaves()
			}
			if err := leader.Release(t.Context(), "orders", held.Token); err != nil {
				t.Fatal(err)
			}
			if err := <-left; err != nil {
				t.Fatal(err)
			}
			if r, err := store.Get(t.Context(), "orders"); err != nil || r.Held() {
				t.Fatalf("together %v: %+v, %v; want it vacant", together, r, err)
			}
			if keys := heirs(t, admin); len(keys) != 0 {
				t.Errorf("together %v: %v are left", together, keys)
			}
			cancel()
			_, _ = leader.Close(t.Context()), heir.Close(t.Context()) // for the next round
		}
	}
}

// The answer to an offer is lost and its caller has given up: it is withdrawn, at the latest by renewals, and what was given because of it shows.
func TestLostOffer(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t)
	admin, store := client(t, server.URL()), open(t, server.URL())
	proxy := testserver.StartProxy(t, server.Addr())
	leader, heir := session(t, store, "leader", time.Minute), session(t, open(t, through(proxy.Addr())), "heir", time.Minute)
	held := acquire(t, leader, "orders", "")
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := heir.Acquire(ctx, bid("orders")); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	awaited := make(chan error, 1)
	go func() { awaited <- heir.Await(ctx, "orders") }()
	awaitHeir(t, admin, heir.ID())
	proxy.Blackhole(testserver.ToClient) // it does not hear that it has got it
	if err := leader.Release(t.Context(), "orders", held.Token); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-awaited; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	proxy.Drop()
	proxy.Heal()
	eventually(t, func() string {
		grant, err := heir.KeepAlive(t.Context())
		if err != nil || grant.Holds["orders"] == 0 {
			return fmt.Sprintf("holds %v, %v; want orders", grant.Holds, err)
		}
		return ""
	})
	if err := heir.Release(t.Context(), "orders", 0); err != nil {
		t.Fatal(err)
	}
	if r, err := store.Get(t.Context(), "orders"); err != nil || r.Held() {
		t.Errorf("%+v, %v; want it vacant", r, err)
	}
}

// An heir whose session has ended is none; one that an administrator has written, or deleted, does no harm.
func TestHeirIsGone(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t)
	admin, store := client(t, server.URL()), open(t, server.URL())
	for name, harm := range map[string]func(key string, heir driver.Session){
		"destroyed": func(_ string, heir driver.Session) {
			if _, err := admin.Session().Destroy(heir.ID(), nil); err != nil {
				t.Fatal(err)
			}
		},
		"deleted": func(key string, _ driver.Session) {
			if _, err := admin.KV().Delete(key, nil); err != nil {
				t.Fatal(err)
			}
		},
		"overwritten": func(key string, _ driver.Session) {
			if _, err := admin.KV().Put(&api.KVPair{Key: key, Value: []byte("x")}, nil); err != nil {
				t.Fatal(err)
			}
		},
	} {
		leader, heir, other := session(t, store, "leader", time.Minute), session(t, store, "heir", time.Minute), session(t, store, "other", time.Minute)
		held := acquire(t, leader, "orders", "")
		waits := wait(t.Context(), heir, "orders")
		awaitHeir(t, admin, heir.ID())
		also := wait(t.Context(), other, "orders")
		harm(heirs(t, admin)[0].Key, heir)
		if err := leader.Release(t.Context(), "orders", held.Token); err != nil {
			t.Fatal(err)
		}
		select {
		case r, ok := <-waits:
			if !ok { // its session is gone
				r = <-also
			}
			if r.Token <= held.Token {
				t.Errorf("%s: %+v", name, r)
			}
		case r := <-also:
			if r.Token <= held.Token {
				t.Errorf("%s: %+v", name, r)
			}
		}
		for _, s := range []driver.Session{leader, heir, other} {
			_ = s.Close(t.Context()) // one is destroyed
		}
		eventually(t, func() string {
			if r, err := store.Get(t.Context(), "orders"); err != nil || r.Held() {
				return fmt.Sprintf("%+v, %v is left", r, err)
			}
			return ""
		})
	}
}
