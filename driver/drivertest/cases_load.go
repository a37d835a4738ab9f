package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/gotenure/tenure/driver"
)

var loadCases = []Case{
	{
		Name: "NothingLeaks",
		Why:  "a goroutine, a connection or a lease leaked with each attempt, and the process or the store died of it in a week (C1)",
		// It counts the goroutines of the whole process.
		alone: true,
		run: func(e *env) {
			election := e.election("e")
			store := e.handle()
			holder := e.open(store, "holder")
			s := e.open(store, "s")
			e.acquire(holder, election, "v")
			cycle := func(i int) {
				e.refused(s, election, i%2 == 0)
				ctx, cancel := context.WithTimeout(e.Context(), time.Duration(i%4)*100*time.Microsecond)
				if err := s.Await(ctx, election); err != nil && !errors.Is(err, context.DeadlineExceeded) {
					e.Fatalf("Await: %v", err)
				}
				_, err := s.Acquire(ctx, driver.Bid{Election: election, Queue: true})
				cancel()
				if err == nil {
					e.Fatal("Acquire of what another holds succeeded")
				}
				e.release(s, election, 0)
				if i%20 == 0 {
					short, err := store.Open(e.Context(), "short", e.long)
					if err != nil {
						e.Fatalf("Open: %v", err)
					}
					e.refused(short, election, true)
					own := fmt.Sprint(election, "/", i%100)
					e.acquire(short, own, "v")
					for r, err := range store.Watch(e.Context(), own) {
						if err != nil || r.Session != short.ID() {
							e.Fatalf("Watch begins with %s, %v", show(r), err)
						}
						break // must free what the watch holds
					}
					if err := short.Close(e.Context()); err != nil {
						e.Fatalf("Close: %v", err)
					}
				}
			}
			for i := range 50 {
				cycle(i) // pools and caches fill
			}
			settled := func(limit, resources int) (int, int) { // the least within some time: what ends does not end at once
				least, leastOfThose := 1<<30, 1<<30
				for deadline := time.Now().Add(patience / 3); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
					least = min(least, runtime.NumGoroutine())
					if e.h.Resources != nil {
						leastOfThose = min(leastOfThose, e.h.Resources(e))
					}
					if least <= limit && (e.h.Resources == nil || leastOfThose <= resources) {
						break
					}
				}
				return least, leastOfThose
			}
			runtime.GC()
			goroutines := runtime.NumGoroutine()
			resources := 0
			if e.h.Resources != nil {
				resources = e.h.Resources(e)
			}
			contexts := 10 // what the case itself may differ by
			for i := range e.h.Cycles {
				cycle(i)
			}
			now, nowResources := settled(goroutines+contexts, resources+contexts)
			if now > goroutines+contexts {
				stacks := make([]byte, 1<<20)
				e.Errorf("%d goroutines became %d in %d cycles\n%s", goroutines, now, e.h.Cycles, stacks[:runtime.Stack(stacks, true)])
			}
			if e.h.Resources != nil && nowResources > resources+contexts {
				e.Errorf("%d resources became %d in %d cycles", resources, nowResources, e.h.Cycles)
			}
		},
	},
	{
		Name: "Contention",
		Why:  "under load, cancellation and death there is never more than one holder, tokens only grow, and somebody leads in the end (S1, B8)",
		run: func(e *env) {
			const workers, elections, rounds = 6, 3, 30
			seed := rand.Uint64()
			e.Logf("seed %d", seed)
			v := &Verifier{}
			var names []string
			for i := range elections {
				names = append(names, e.election(fmt.Sprint(i)))
			}
			var wg sync.WaitGroup
			shared := e.handle()
			for i := range workers {
				store := shared
				if i%2 == 1 {
					store = e.handle()
				}
				w := &contender{e: e, store: store, v: v, names: names, member: fmt.Sprint("worker ", i), rng: rand.New(rand.NewPCG(seed, uint64(i)))}
				wg.Go(func() { w.run(rounds) })
			}
			wg.Wait()
			if err := v.Finish(); err != nil {
				e.Errorf("seed %d: %v", seed, err)
			}
			terms, events := v.Count()
			if terms < workers {
				e.Errorf("%d workers have won %d terms in %d rounds each", workers, terms, rounds)
			}
			e.Logf("%d terms, %d events", terms, events)
			last := e.open(e.handle(), "last")
			for _, name := range names {
				e.wins(last, name, "")
			}
		},
	},
}

// A contender acquires, waits, gives up, releases, dies and comes back, as a seed has it. It trusts its terms as package tenure would:
// from the answer until the TTL has passed since the request was sent.
type contender struct {
	e      *env
	store  driver.Store
	v      *Verifier
	names  []string
	member string
	rng    *rand.Rand

	session driver.Session // nil: it has to open one
	sent    time.Time      // of the last renewal that was granted
}

func (w *contender) run(rounds int) {
	ctx := context.Background() // each call is bounded by call
	for range rounds {
		if w.session == nil {
			sent := time.Now()
			var s driver.Session
			err := w.call(ctx, func(ctx context.Context) (err error) {
				s, err = w.store.Open(ctx, w.member, w.e.short)
				return err
			})
			if err != nil {
				w.e.Errorf("Open: %v", err)
				return
			}
			w.session, w.sent = s, sent
		}
		w.round(ctx, w.names[w.rng.IntN(len(w.names))])
	}
	if w.session != nil {
		if err := w.call(ctx, w.session.Close); err != nil {
			w.e.Errorf("Close: %v", err)
		}
	}
}

func (w *contender) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return f(ctx)
}

// round stands once in the election, and leaves nothing behind.
func (w *contender) round(ctx context.Context, election string) {
	sent := time.Now()
	switch err := w.call(ctx, func(ctx context.Context) error { _, err := w.session.KeepAlive(ctx); return err }); {
	case errors.Is(err, driver.ErrSessionLost):
		w.session = nil
		return
	case err != nil:
		w.e.Errorf("KeepAlive: %v", err)
		return
	}
	w.sent = sent

	limit := time.Duration(w.rng.Int64N(int64(20 * time.Millisecond)))
	if w.rng.IntN(3) == 0 {
		limit = w.e.short // to wait in earnest
	}
	bid := driver.Bid{Election: election, Value: []byte(w.member), Queue: w.rng.IntN(4) > 0}
	attempt, cancel := context.WithTimeout(ctx, limit)
	r, err := campaign(attempt, w.session, bid)
	cancel()
	switch {
	case errors.Is(err, driver.ErrSessionLost):
		w.session = nil
		return
	case err == nil:
		w.lead(ctx, r)
	case !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, driver.ErrHeld):
		w.e.Errorf("campaign: %v", err)
	}
	if w.session == nil {
		return
	}
	err = w.call(ctx, func(ctx context.Context) error { return w.session.Release(ctx, election, 0) })
	if err != nil && !errors.Is(err, driver.ErrSessionLost) {
		w.e.Errorf("Release: %v", err)
	}
}

// lead leads one term.
func (w *contender) lead(ctx context.Context, r driver.Record) {
	event := Event{Member: w.member, Session: w.session.ID(), Election: r.Election, Token: r.Token, Deadline: w.sent.Add(w.e.short - w.e.short/100)}
	record := func(kind EventKind, at time.Time) {
		event := event
		event.Kind, event.At = kind, at
		w.v.Record(event)
	}
	now := time.Now()
	if !now.Before(event.Deadline) {
		return // it was won too late to be trusted
	}
	record(Started, now)
	for range w.rng.IntN(3) {
		if w.rng.IntN(2) == 0 {
			time.Sleep(time.Duration(w.rng.Int64N(int64(5 * time.Millisecond)))) // work
		}
		if now := time.Now(); now.Before(event.Deadline) {
			record(Worked, now)
		}
	}
	die := w.rng.IntN(15) == 0
	end := time.Now()
	if die || end.After(event.Deadline) {
		end = event.Deadline
	}
	record(Ended, end)
	switch {
	case die: // its session is left to lapse
		w.session = nil
	case w.rng.IntN(10) == 0:
		if err := w.call(ctx, w.session.Close); err != nil {
			w.e.Errorf("Close: %v", err)
		}
		w.session = nil
	case w.rng.IntN(2) == 0:
		if err := w.call(ctx, func(ctx context.Context) error { return w.session.Release(ctx, r.Election, r.Token) }); err != nil && !errors.Is(err, driver.ErrSessionLost) {
			w.e.Errorf("Release: %v", err)
		}
	}
}
