package drivertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/gotenure/tenure/driver"
)

// A watcher collects what a watch yields.
type watcher struct {
	e    *env
	done chan struct{}
	stop context.CancelFunc

	mu     sync.Mutex
	states []driver.Record
	times  []time.Time
	err    error
}

func (e *env) watch(store driver.Store, election string) *watcher {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{e: e, done: make(chan struct{}), stop: cancel}
	e.Cleanup(func() { cancel(); <-w.done })
	go func() {
		defer close(w.done)
		for r, err := range store.Watch(ctx, election) {
			w.mu.Lock()
			if err != nil {
				w.err = err
			} else {
				w.states = append(w.states, r)
				w.times = append(w.times, time.Now())
			}
			w.mu.Unlock()
		}
	}()
	return w
}

func (w *watcher) seen() ([]driver.Record, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]driver.Record(nil), w.states...), w.err
}

// sees waits until the last state satisfies f, and returns it.
func (w *watcher) sees(what string, f func(driver.Record) bool) driver.Record {
	w.e.Helper()
	var last driver.Record
	w.e.eventually(func() string {
		states, err := w.seen()
		if err != nil {
			w.e.Fatalf("the watch ended: %v", err)
		}
		if len(states) > 0 {
			if last = states[len(states)-1]; f(last) {
				return ""
			}
		}
		return "the watch has yielded " + showAll(states) + "; want " + what + " last"
	})
	return last
}

func (w *watcher) seesVacant() driver.Record {
	w.e.Helper()
	return w.sees("a vacant record", func(r driver.Record) bool { return !r.Held() })
}

func (w *watcher) seesState(want driver.Record) {
	w.e.Helper()
	w.sees(show(want), func(r driver.Record) bool { return same(r, want) })
}

func showAll(states []driver.Record) string {
	if len(states) == 0 {
		return "nothing"
	}
	text := ""
	for i, r := range states {
		if i > 0 {
			text += ", "
		}
		text += show(r)
	}
	return text
}

var watchCases = []Case{
	{
		Name: "WatchSeesEveryChange",
		Why:  "observers follow the leader by it: the current state first, then each later one, in order, the last never missing",
		run: func(e *env) {
			election := e.election("e")
			w := e.watch(e.handle(), election)
			if r := w.seesVacant(); r.Election != election {
				e.Errorf("the watch of a record that does not exist yields %s", show(r))
			}
			a, b := e.open(e.handle(), "a"), e.open(e.handle(), "b")
			truth := []driver.Record{{Election: election}}
			last := func() driver.Record { return truth[len(truth)-1] }
			for range 5 {
				for _, s := range []driver.Session{a, b} {
					truth = append(truth, e.acquire(s, election, "one"))
					w.seesState(last())
					truth = append(truth, e.acquire(s, election, "two"))
					w.seesState(last())
					e.release(s, election, last().Token)
					w.seesVacant()
				}
			}
			// As fast as it goes: the watch may skip, but not reorder.
			for range 10 {
				truth = append(truth, e.acquire(a, election, "fast"))
				truth = append(truth, e.acquire(a, election, "faster"))
				e.release(a, election, last().Token)
				truth = append(truth, e.acquire(b, election, "fast"))
				e.release(b, election, last().Token)
			}
			truth = append(truth, e.acquire(a, election, "last"))
			w.seesState(last())
			late := e.watch(e.handle(), election)
			late.seesState(last())
			if states, _ := late.seen(); len(states) != 1 {
				e.Errorf("a watch that began after all changes has yielded %s", showAll(states))
			}

			states, _ := w.seen()
			next := 0
			for i, r := range states {
				if i > 0 && same(r, states[i-1]) {
					e.Errorf("the watch yielded %s twice in a row", show(r))
				}
				if !r.Held() {
					continue // it lies between any two of the others
				}
				for next < len(truth) && !same(truth[next], r) {
					next++
				}
				if next == len(truth) {
					e.Fatalf("%s comes too late or never was, in\n%s", show(r), showAll(states))
				}
			}
		},
	},
	{
		Name:   "WatchIsPushed",
		Why:    "a store that claims to push, and lets its watches find changes by a slow poll, shows leaders of seconds ago (L1, C6)",
		absent: needsPush,
		run: func(e *env) {
			election := e.election("e")
			s := e.open(e.handle(), "s")
			w := e.watch(e.handle(), election)
			w.seesVacant()
			var calls, news []time.Duration
			timed := func(change func() driver.Record) {
				e.Helper()
				start := time.Now()
				want := change()
				changed := time.Now()
				w.sees(show(want), func(r driver.Record) bool { return r.Session == want.Session && string(r.Value) == string(want.Value) })
				calls, news = append(calls, changed.Sub(start)), append(news, time.Since(changed))
			}
			for range 5 {
				var r driver.Record
				timed(func() driver.Record { r = e.acquire(s, election, "one"); return r })
				timed(func() driver.Record { return e.acquire(s, election, "two") })
				timed(func() driver.Record { e.release(s, election, r.Token); return driver.Record{} })
			}
			// Half of them may be slow, as a busy machine is. A poll that is gentle enough to back a push is slower than this.
			slices.Sort(calls)
			slices.Sort(news)
			if limit := max(time.Second, 20*calls[len(calls)/2]); news[len(news)/2] > limit {
				e.Errorf("the watch has seen half of %d changes more than %v after the call that made them, which took %v", len(news), news[len(news)/2], calls[len(calls)/2])
			}
		},
	},
	{
		Name: "WatchSeesExpiry",
		Why:  "an observer that is not told of a death shows a dead leader until somebody takes over",
		run: func(e *env) {
			election := e.election("e")
			m := e.mortal(e.handle(), "m")
			held := e.acquire(m, election, "v")
			w := e.watch(e.handle(), election)
			w.seesState(held)
			earliest := m.die()
			r := w.seesVacant()
			if now := time.Now(); now.Before(earliest) {
				e.Errorf("the watch saw the expiry %v before it", earliest.Sub(now))
			}
			if r.Token != 0 && r.Token != held.Token {
				e.Errorf("token was %d, and is %d in the vacant record", held.Token, r.Token)
			}
		},
	},
	{
		Name: "WatchIsSilentOnRenewal",
		Why:  "an observer that hears every renewal of every leader is a load for nothing (C7)",
		run: func(e *env) {
			election := e.election("e")
			s := e.open(e.handle(), "s")
			held := e.acquire(s, election, "v")
			w := e.watch(e.handle(), election)
			w.seesState(held)
			for range 5 {
				e.keepAlive(s)
			}
			e.acquire(s, election, "v") // publishes what is published already
			w.seesState(e.acquire(s, election, "w"))
			if states, _ := w.seen(); len(states) != 2 {
				e.Errorf("two states, yet the watch has yielded %s", showAll(states))
			}
		},
	},
	{
		Name: "WatchSeesTransfer",
		Why:  "a handover from leader to leader is a change like any other",
		run: func(e *env) {
			election := e.election("e")
			a, b := e.open(e.handle(), "a"), e.open(e.handle(), "b")
			held := e.acquire(a, election, "v")
			w := e.watch(e.handle(), election)
			w.seesState(held)
			e.refused(b, election, true)
			e.release(a, election, held.Token)
			w.seesState(e.wins(b, election, "w"))
			if err := b.Close(e.context()); err != nil {
				e.Fatal(err)
			}
			w.seesVacant()
		},
	},
	{
		Name:   "WatchSeesDeletion",
		Why:    "an operator's deletion is a change like any other; nothing may stay unseen for ever (C6)",
		absent: needsDelete,
		run: func(e *env) {
			election := e.election("e")
			a, b := e.open(e.handle(), "a"), e.open(e.handle(), "b")
			held := e.acquire(a, election, "v")
			w := e.watch(e.handle(), election)
			w.seesState(held)
			e.h.DeleteRecord(e, election)
			w.seesVacant()
			w.seesState(e.acquire(b, election, "w"))
		},
	},
	{
		Name: "WatchEnds",
		Why:  "a watch whose caller is gone is a leak, one that ends without a word leaves its caller blind",
		run: func(e *env) {
			election := e.election("e")
			s := e.open(e.handle(), "s")
			held := e.acquire(s, election, "v")
			store := e.handle()
			w := e.watch(store, election)
			w.seesState(held)
			w.stop()
			<-w.done
			if _, err := w.seen(); !errors.Is(err, context.Canceled) {
				e.Errorf("a cancelled watch ended with %v; want the context's error", err)
			}
			for r, err := range store.Watch(e.context(), election) {
				if err != nil || !same(r, held) {
					e.Errorf("a second watch begins with %s, %v", show(r), err)
				}
				break // must free what the watch holds; the leak case counts
			}
			w = e.watch(store, election)
			w.seesState(held)
			if err := store.Close(); err != nil {
				e.Fatal(err)
			}
			select {
			case <-w.done:
				if _, err := w.seen(); err == nil {
					e.Error("the watch of a closed store ended without an error")
				}
			case <-time.After(patience):
				e.Error("the watch of a closed store goes on")
			}
		},
	},
}
