package drivertest

import (
	"context"
	"errors"
	"time"

	"github.com/gotenure/tenure/driver"
)

// calls are all that can be made of a store and a session.
func calls(store driver.Store, s driver.Session, election string, ttl time.Duration) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Open": func(ctx context.Context) error {
			_, err := store.Open(ctx, "m", ttl)
			return err
		},
		"Get": func(ctx context.Context) error {
			_, err := store.Get(ctx, election)
			return err
		},
		"List": func(ctx context.Context) (err error) {
			for _, err = range store.List(ctx, election) {
				if err != nil {
					break
				}
			}
			return err
		},
		"Watch": func(ctx context.Context) (err error) {
			for _, err = range store.Watch(ctx, election) {
				if err != nil {
					break
				}
			}
			return err
		},
		"KeepAlive": func(ctx context.Context) error {
			_, err := s.KeepAlive(ctx)
			return err
		},
		"Acquire": func(ctx context.Context) error {
			_, err := s.Acquire(ctx, driver.Bid{Election: election + "/other", Queue: true})
			return err
		},
		"Await":   func(ctx context.Context) error { return s.Await(ctx, election) },
		"Release": func(ctx context.Context) error { return s.Release(ctx, election, 0) },
		"Close":   s.Close,
	}
}

var endCases = []Case{
	{
		Name: "EndedContext",
		Why:  "a call that is made too late fails at once, with the context's error, and the next one works",
		run: func(e *env) {
			election := e.election("e")
			store := e.handle()
			holder := e.open(e.handle(), "holder")
			held := e.acquire(holder, election, "v")
			s := e.open(store, "s")
			e.refused(s, election, false)
			cancelled, cancel := context.WithCancel(e.Context())
			cancel()
			overdue, cancel := context.WithDeadline(e.Context(), time.Now().Add(-time.Second))
			defer cancel()
			for name, call := range calls(store, s, election, e.long) {
				if name == "Close" {
					continue // which frees the client's part in any case
				}
				for want, ctx := range map[error]context.Context{context.Canceled: cancelled, context.DeadlineExceeded: overdue} {
					start := time.Now()
					if err := call(ctx); !errors.Is(err, want) {
						e.Errorf("%s with an ended context: %v; want %v", name, err, want)
					}
					if took := time.Since(start); took > patience/3 {
						e.Errorf("%s with an ended context took %v", name, took)
					}
				}
			}
			e.keepAlive(s)
			e.release(s, election+"/other", 0)
			e.release(holder, election, held.Token)
			e.grows(held, e.wins(s, election, "w"), "release")

			doomed := e.open(store, "doomed")
			start := time.Now()
			_ = doomed.Close(cancelled)
			if took := time.Since(start); took > patience/3 {
				e.Errorf("Close with an ended context took %v", took)
			}
			if _, err := doomed.KeepAlive(e.context()); err == nil {
				e.Error("KeepAlive succeeded after Close, which had failed; the caller counts on the session to lapse")
			}
		},
	},
	{
		Name: "ClosedStore",
		Why:  "after Close everything fails, nothing hangs and nothing panics (C3)",
		run: func(e *env) {
			election := e.election("e")
			store := e.handle()
			holder := e.open(e.handle(), "holder")
			held := e.acquire(holder, election, "v")
			s := e.open(store, "s")
			e.refused(s, election, true)
			result := e.waiting(e.context(), s, election, true)
			// Await should be under way, which nothing shows from outside; if it is not, the case tests less.
			time.Sleep(50 * time.Millisecond)
			start := time.Now()
			for range 2 {
				if err := store.Close(); err != nil {
					e.Errorf("Close: %v", err)
				}
			}
			if took := time.Since(start); took > patience/3 {
				e.Errorf("Close took %v; it is bounded by a few seconds", took)
			}
			if o := <-result; o.err == nil || errors.Is(o.err, context.DeadlineExceeded) {
				e.Errorf("a wait in a closed store ended with %v", o.err)
			}
			for name, call := range calls(store, s, election, e.long) {
				start := time.Now()
				if err := call(e.context()); err == nil {
					e.Errorf("%s in a closed store succeeded", name)
				}
				if took := time.Since(start); took > patience/3 {
					e.Errorf("%s in a closed store took %v", name, took)
				}
			}
			if got := e.holds(holder, election); !same(got, held) {
				e.Errorf("another handle's Close left %s; want %s", show(got), show(held))
			}
		},
	},
	{
		Name: "ClosedStoreLetsSessionsLapse",
		Why:  "a process that ends without closing its sessions is a death like any other (L2)",
		run: func(e *env) {
			election := e.election("e")
			store, next := e.handle(), e.open(e.handle(), "next")
			m := e.mortal(store, "m")
			held := e.acquire(m, election, "v")
			earliest := m.die()
			if err := store.Close(); err != nil {
				e.Fatal(err)
			}
			won := e.wins(next, election, "w")
			if now := time.Now(); now.Before(earliest) {
				// A store may end a session with its connection: that is sooner, and no harm, for its process is gone.
				e.Logf("the election was free %v before the TTL had passed", earliest.Sub(now))
			}
			e.grows(held, won, "expiry")
		},
	},
}
