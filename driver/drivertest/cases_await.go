package drivertest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gotenure/tenure/driver"
)

// waiting starts a campaign in the background and returns a channel for how it ends.
func (e *env) waiting(ctx context.Context, s driver.Session, election string, queue bool) <-chan outcome {
	result := make(chan outcome, 1)
	bid := driver.Bid{Election: election, Value: []byte("of " + s.ID()), Queue: queue}
	go func() {
		r, err := campaign(ctx, s, bid)
		result <- outcome{r, err, time.Now()}
	}()
	return result
}

type outcome struct {
	record driver.Record
	err    error
	at     time.Time
}

var awaitCases = []Case{
	{
		Name: "AwaitWakesOnRelease",
		Why:  "a released lease was taken only after the next poll (L1, B6)",
		run: func(e *env) {
			for _, queue := range []bool{false, true} {
				election := e.election(map[bool]string{false: "beside the queue", true: "in the queue"}[queue])
				holder, s := e.open(e.handle(), "holder"), e.open(e.handle(), "s")
				held := e.acquire(holder, election, "v")
				for range 5 {
					e.refused(s, election, queue)
					result := e.waiting(e.context(), s, election, queue)
					// Await should be under way, which nothing shows from outside; if it is not, the round tests AwaitRemembers.
					time.Sleep(50 * time.Millisecond)
					start := time.Now()
					e.release(holder, election, held.Token)
					o := <-result
					if o.err != nil {
						e.Fatalf("waiting for a released election: %v", o.err)
					}
					// The holder's lease is far longer than this bound, which leaves room for a poll and a busy machine.
					if took := o.at.Sub(start); took > patience/3 {
						e.Errorf("taken %v after the release", took)
					}
					e.grows(held, o.record, "handover")
					e.release(s, election, o.record.Token)
					held = e.acquire(holder, election, "v")
				}
			}
		},
	},
	{
		Name:   "AwaitIsPushed",
		Why:    "a store that claims to push, and lets candidates find a vacancy by a slow poll, leaves elections without a leader for seconds (L1, B6)",
		absent: needsPush,
		run: func(e *env) {
			for _, queue := range []bool{false, true} {
				election := e.election(map[bool]string{false: "beside the queue", true: "in the queue"}[queue])
				line := []driver.Session{e.open(e.handle(), "a"), e.open(e.handle(), "b")}
				held := e.acquire(line[0], election, "v")
				var calls, news []time.Duration
				for range 9 {
					e.refused(line[1], election, queue)
					result := e.waiting(e.context(), line[1], election, queue)
					// Await should be under way, which nothing shows from outside; if it is not, the round is the faster.
					time.Sleep(20 * time.Millisecond)
					start := time.Now()
					e.release(line[0], election, held.Token)
					released := time.Now()
					o := <-result
					if o.err != nil {
						e.Fatalf("waiting for a released election: %v", o.err)
					}
					calls, news = append(calls, released.Sub(start)), append(news, o.at.Sub(released))
					held = o.record
					slices.Reverse(line)
				}
				// Half of them may be slow, as a busy machine is. A poll that is gentle enough to back a push is slower than this.
				slices.Sort(calls)
				slices.Sort(news)
				if limit := max(time.Second, 20*calls[len(calls)/2]); news[len(news)/2] > limit {
					e.Errorf("half of %d handovers took more than %v after the release, which took %v", len(news), news[len(news)/2], calls[len(calls)/2])
				}
			}
		},
	},
	{
		Name: "AwaitRemembers",
		Why:  "a vacancy between the refusal and the wait must not be slept through (L1)",
		run: func(e *env) {
			for _, queue := range []bool{false, true} {
				election := e.election(map[bool]string{false: "beside the queue", true: "in the queue"}[queue])
				holder, s := e.open(e.handle(), "holder"), e.open(e.handle(), "s")
				held := e.acquire(holder, election, "v")
				e.refused(s, election, queue)
				e.release(holder, election, held.Token)
				e.await(s, election)
				won := e.wins(s, election, "w")
				e.release(s, election, won.Token)

				held = e.acquire(holder, election, "v")
				e.refused(s, election, queue)
				if err := holder.Close(e.context()); err != nil {
					e.Fatal(err)
				}
				e.await(s, election)
				e.grows(held, e.wins(s, election, "w"), "Close of the holder")
			}
		},
	},
	{
		Name: "AwaitWakesOnExpiry",
		Why:  "nobody announces a death; a candidate learns it from the store within the TTL (L2)",
		run: func(e *env) {
			for _, queue := range []bool{false, true} {
				election := e.election(map[bool]string{false: "beside the queue", true: "in the queue"}[queue])
				m, s := e.mortal(e.handle(), "m"), e.open(e.handle(), "s")
				held := e.acquire(m, election, "v")
				result := e.waiting(e.context(), s, election, queue)
				earliest := m.die()
				o := <-result
				if o.err != nil {
					e.Fatalf("waiting for the election of a dead session: %v", o.err)
				}
				if o.at.Before(earliest) {
					e.Errorf("taken %v before the holder's TTL of %v had passed", earliest.Sub(o.at), e.short)
				}
				if late := o.at.Sub(earliest); late > e.short+patience/3 {
					e.Errorf("taken %v after the holder's lease had lapsed", late)
				}
				e.grows(held, o.record, "expiry")
				e.lost(m, election)
			}
		},
	},
	{
		Name: "AwaitEndsWithItsContext",
		Why:  "a member that leaves must not hang in a wait for somebody else (C3)",
		run: func(e *env) {
			election := e.election("e")
			holder, s := e.open(e.handle(), "holder"), e.open(e.handle(), "s")
			e.acquire(holder, election, "v")
			ctx, cancel := context.WithCancel(e.Context())
			defer cancel()
			result := e.waiting(ctx, s, election, true)
			// Await should be under way, which nothing shows from outside; if it is not, the case tests less.
			time.Sleep(50 * time.Millisecond)
			start := time.Now()
			cancel()
			o := <-result
			if !errors.Is(o.err, context.Canceled) {
				e.Errorf("after cancel: %v; want the context's error", o.err)
			}
			if took := time.Since(start); took > patience/3 {
				e.Errorf("Await went on for %v after its context had ended", took)
			}
			e.holds(holder, election)
		},
	},
	{
		Name: "DeadSessionDoesNotWin",
		Why:  "a candidate whose session had expired while it waited was told that it leads (B1)",
		run: func(e *env) {
			election := e.election("e")
			holder, m := e.open(e.handle(), "holder"), e.mortal(e.handle(), "m")
			held := e.acquire(holder, election, "v")
			e.refused(m, election, true)
			result := e.waiting(e.context(), m, election, true)
			m.buried()
			e.release(holder, election, held.Token)
			if o := <-result; !errors.Is(o.err, driver.ErrSessionLost) {
				e.Errorf("the campaign of a dead session ended with %s, %v; want ErrSessionLost", show(o.record), o.err)
			}
			e.vacant(election)
			e.lost(m, election)
			e.vacant(election)
			e.grows(held, e.acquire(holder, election, "v"), "release")
		},
	},
}

var queueCases = []Case{
	{
		Name:   "QueueIsFirstInFirstOut",
		Why:    "a release hands the election to the next in line in one step: nobody barges in, nobody starves (L4)",
		absent: needsQueue,
		run: func(e *env) {
			election := e.election("e")
			holder := e.open(e.handle(), "holder")
			last := e.acquire(holder, election, "v")
			shared := e.handle()
			var line []driver.Session
			for i := range 6 {
				store := shared
				if i%2 == 1 {
					store = e.handle()
				}
				s := e.open(store, "waiter")
				e.refused(s, election, true)
				line = append(line, s)
			}
			for _, s := range slices.Backward(line) {
				e.refused(s, election, true) // asking again keeps the place
			}
			current := holder
			for i, s := range line {
				e.release(current, election, last.Token)
				given := e.holds(s, election)
				e.grows(last, given, "transfer")
				if string(given.Value) != "of "+s.ID() {
					e.Errorf("waiter %d bid %q, and was given the election with %q", i, "of "+s.ID(), given.Value)
				}
				e.await(s, election)
				if own := e.acquire(s, election, "confirmed"); own.Token != given.Token {
					e.Errorf("waiter %d was given token %d and then acquired token %d", i, given.Token, own.Token)
				}
				e.refused(holder, election, false)
				current, last = s, given
			}
			e.release(current, election, last.Token)
			e.vacant(election)
		},
	},
	{
		Name: "WakeEndsWithTheSession",
		Why:  "a candidate that waits for a channel alone must not wait on when its session is over (B1)",
		absent: func(e *env) string {
			if _, ok := e.open(e.handle(), "s").(driver.Waker); !ok {
				return "sessions are no driver.Waker"
			}
			return ""
		},
		run: func(e *env) {
			election := e.election("e")
			holder, s := e.open(e.handle(), "holder"), e.open(e.handle(), "s")
			e.acquire(holder, election, "v")
			e.refused(s, election, true)
			wake := s.(driver.Waker).Wake(election)
			if wake == nil {
				return // only Await can wait now
			}
			if err := s.Close(e.context()); err != nil {
				e.Fatal(err)
			}
			select {
			case <-wake:
			case <-time.After(patience):
				e.Errorf("Wake's channel was silent for %v after Close", patience)
			}
		},
	},
	{
		Name:   "ReleaseWakesTheNextOnly",
		Why:    "when a leader goes, a thousand followers must not all come running (L4)",
		absent: needsQueue,
		run: func(e *env) {
			election := e.election("e")
			holder := e.open(e.handle(), "holder")
			held := e.acquire(holder, election, "v")
			ctx, cancel := context.WithCancel(e.Context())
			defer cancel()
			const n = 10
			woken := make(chan int, 1000*n)
			var line []driver.Session
			done := make(chan struct{}, n)
			store := e.handle()
			for i := range n {
				s := e.open(store, "waiter")
				e.refused(s, election, true)
				line = append(line, s)
				go func() {
					defer func() { done <- struct{}{} }()
					for s.Await(ctx, election) == nil {
						woken <- i
						if _, err := s.Acquire(ctx, driver.Bid{Election: election, Queue: true}); !errors.Is(err, driver.ErrHeld) {
							return
						}
					}
				}()
			}
			// All wait by now; who does not is not woken by the first release, whatever the store.
			time.Sleep(300 * time.Millisecond)
			const rounds = 3
			current := holder
			for i := range rounds {
				e.release(current, election, held.Token)
				<-done // the next in line has it, or has failed
				held = e.acquire(line[i], election, "")
				current = line[i]
				// The others would be woken about now, if the store woke them.
				time.Sleep(300 * time.Millisecond)
			}
			cancel()
			for range n - rounds {
				<-done
			}
			// A wait may end for nothing now and then. Everybody waking each time would be n + n-1 + n-2.
			if got := len(woken); got > 2*n {
				e.Errorf("%d releases woke waiters %d times; want about one each", rounds, got)
			}
		},
	},
	{
		Name:   "QueuePassesOverTheDead",
		Why:    "an election that is handed to a dead session is led by nobody for another TTL (L2, B2)",
		absent: needsQueue,
		run: func(e *env) {
			election := e.election("e")
			holder := e.open(e.handle(), "holder")
			held := e.acquire(holder, election, "v")
			lapsed, closed, left, alive := e.mortal(e.handle(), "lapsed"), e.open(e.handle(), "closed"), e.open(e.handle(), "left"), e.open(e.handle(), "alive")
			for _, s := range []driver.Session{lapsed, closed, left, alive} {
				e.refused(s, election, true)
			}
			lapsed.buried()
			if err := closed.Close(e.context()); err != nil {
				e.Fatal(err)
			}
			e.release(left, election, 0)
			e.release(holder, election, held.Token)
			e.grows(held, e.holds(alive, election), "transfer past the dead")
			e.await(alive, election)
			e.acquire(alive, election, "w")
		},
	},
	{
		Name:   "ExpiryServesTheQueue",
		Why:    "a dead leader's election goes to the next in line, not to whoever polls first (L2, L4)",
		absent: needsQueue,
		run: func(e *env) {
			election := e.election("e")
			m := e.mortal(e.handle(), "m")
			held := e.acquire(m, election, "v")
			first, second := e.open(e.handle(), "first"), e.open(e.handle(), "second")
			e.refused(first, election, true)
			e.refused(second, election, true)
			one, two := e.waiting(e.context(), first, election, true), e.waiting(e.context(), second, election, true)
			m.die()
			o := <-one
			if o.err != nil {
				e.Fatalf("the first in line: %v", o.err)
			}
			e.grows(held, o.record, "expiry")
			e.holds(first, election)
			select {
			case o := <-two:
				e.Fatalf("the second in line has %s, %v", show(o.record), o.err)
			default:
			}
			e.release(first, election, o.record.Token)
			o2 := <-two
			if o2.err != nil {
				e.Fatalf("the second in line: %v", o2.err)
			}
			e.grows(o.record, o2.record, "transfer")
		},
	},
	{
		Name:   "AttemptTakesNoPlace",
		Why:    "who only tried once does not wait, and must not be handed an election it no longer wants (B4)",
		absent: needsQueue,
		run: func(e *env) {
			election := e.election("e")
			holder, s := e.open(e.handle(), "holder"), e.open(e.handle(), "s")
			held := e.acquire(holder, election, "v")
			e.refused(s, election, false)
			e.release(holder, election, held.Token)
			e.vacant(election)
		},
	},
	{
		Name:   "LateReleaseKeepsThePlace",
		Why:    "a release that was delayed took its session's place in the queue away, and it waited for ever (A4, B10)",
		absent: needsQueue,
		run: func(e *env) {
			election := e.election("e")
			s, other := e.open(e.handle(), "s"), e.open(e.handle(), "other")
			first := e.acquire(s, election, "1")
			e.release(s, election, first.Token)
			held := e.acquire(other, election, "2")
			e.refused(s, election, true)
			e.release(s, election, first.Token) // again, late
			e.release(s, election, held.Token)  // which is another's
			e.release(other, election, held.Token)
			e.holds(s, election)
			e.await(s, election)
			e.acquire(s, election, "3")
		},
	},
	{
		Name:   "GrantTellsOfUnclaimedTransfer",
		Why:    "an election that was handed to a session whose caller had given up stays held by a live session that does not know (S6, B4)",
		absent: needsQueue,
		run: func(e *env) {
			election := e.election("e")
			holder, s := e.open(e.handle(), "holder"), e.open(e.handle(), "s")
			held := e.acquire(holder, election, "v")
			e.refused(s, election, true)
			e.release(holder, election, held.Token)
			given := e.holds(s, election)
			e.eventually(func() string {
				if grant := e.keepAlive(s); grant.Holds[election] != given.Token {
					return "a renewal does not tell the session that it holds what was handed to it"
				}
				return ""
			})
			e.acquire(s, election, "claimed")
			if grant := e.keepAlive(s); grant.Holds != nil {
				e.Errorf("the session has claimed all that it holds, yet Holds is %v", grant.Holds)
			}
		},
	},
}
