package drivertest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gotenure/tenure/driver"
)

var tokenCases = []Case{
	{
		Name: "TokensGrow",
		Why:  "guards refuse what is older than what they have seen; a token that comes again lets a stale leader in (S1)",
		run: func(e *env) {
			election := e.election("e")
			a, b := e.open(e.handle(), "a"), e.open(e.handle(), "b")
			last := e.acquire(a, election, "")
			next := func(s driver.Session, what string) {
				e.Helper()
				r := e.acquire(s, election, "")
				e.grows(last, r, what)
				last = r
			}
			for range 5 {
				e.release(a, election, last.Token)
				next(a, "release and acquire by one session")
				e.release(a, election, 0)
				next(b, "release to another session")
				e.release(b, election, last.Token)
				next(a, "release back")
			}
			if err := a.Close(e.context()); err != nil {
				e.Fatal(err)
			}
			next(b, "Close of the session")
			e.release(b, election, last.Token)
			m := e.mortal(e.handle(), "m")
			next(m, "release")
			m.die()
			won := e.wins(b, election, "")
			e.grows(last, won, "expiry")
		},
	},
	{
		Name: "TokensGrowAcrossHandles",
		Why:  "a restart of every client must not restart the tokens (S1)",
		run: func(e *env) {
			election := e.election("e")
			var last driver.Record
			for i := range 3 {
				store := e.h.Open(e)
				s, err := store.Open(e.context(), "m", e.long)
				if err != nil {
					e.Fatal(err)
				}
				r := e.acquire(s, election, "")
				if i > 0 {
					e.grows(last, r, "closing and opening the store")
				}
				last = r
				if err := s.Close(e.context()); err != nil {
					e.Fatal(err)
				}
				if err := store.Close(); err != nil {
					e.Fatal(err)
				}
			}
		},
	},
	{
		Name:   "TokensGrowAcrossDeletion",
		Why:    "an operator who deletes the record of a stuck election must not make the guards refuse every later leader, or accept an earlier one (S1, B9)",
		absent: needsDelete,
		run: func(e *env) {
			election := e.election("e")
			a, b := e.open(e.handle(), "a"), e.open(e.handle(), "b")
			last := e.acquire(a, election, "")
			for range 3 {
				e.release(a, election, 0)
				last = e.acquire(a, election, "")
			}
			e.h.DeleteRecord(e, election)
			r := e.wins(b, election, "")
			e.grows(last, r, "deletion of a held record")
			e.release(b, election, 0)
			e.h.DeleteRecord(e, election)
			e.vacant(election)
			e.grows(r, e.wins(b, election, ""), "deletion of a vacant record")
		},
	},
}

var releaseCases = []Case{
	{
		Name: "ReleaseFrees",
		Why:  "a leader that resigns is replaced at once; resigning can be repeated until it is true (B10)",
		run: func(e *env) {
			election := e.election("e")
			s, other := e.open(e.handle(), "s"), e.open(e.handle(), "other")
			r := e.acquire(s, election, "v")
			e.release(s, election, r.Token)
			if got := e.vacant(election); got.Token != 0 && got.Token != r.Token || len(got.Value) > 0 {
				e.Errorf("after Release of token %d: %s", r.Token, show(got))
			}
			e.release(s, election, r.Token)
			won := e.acquire(other, election, "w")
			e.release(s, election, r.Token)
			if got := e.holds(other, election); !same(got, won) {
				e.Errorf("repeating the release left %s; want %s", show(got), show(won))
			}
			if grant := e.keepAlive(s); len(grant.Holds) > 0 {
				e.Errorf("after Release the grant says that the session holds %v", grant.Holds)
			}
		},
	},
	{
		Name: "ReleaseOfNothing",
		Why:  "cleaning up must not need to know what is there (A6)",
		run: func(e *env) {
			s, holder := e.open(e.handle(), "s"), e.open(e.handle(), "holder")
			e.release(s, e.election("never"), 0)
			e.release(s, e.election("never"), 42)
			e.vacant(e.election("never"))
			held := e.acquire(holder, e.election("e"), "v")
			e.release(s, e.election("e"), 0)
			e.release(s, e.election("e"), held.Token)
			if got := e.holds(holder, e.election("e")); !same(got, held) {
				e.Errorf("Release by who holds nothing left %s; want %s", show(got), show(held))
			}
		},
	},
	{
		Name: "ReleaseIsScopedToTheTerm",
		Why:  "a process that was paused in its release erased its successor's record, or its own next term (A4)",
		run: func(e *env) {
			election := e.election("e")
			s, other := e.open(e.handle(), "s"), e.open(e.handle(), "other")
			first := e.acquire(s, election, "1")
			for _, wrong := range []uint64{first.Token + 1, first.Token - 1, 1 << 62} {
				if wrong == 0 {
					continue // which is no token
				}
				e.release(s, election, wrong)
				e.holds(s, election)
			}
			e.release(s, election, first.Token)
			second := e.acquire(s, election, "2")
			e.release(s, election, first.Token)
			if got := e.holds(s, election); !same(got, second) {
				e.Errorf("a late release of the session's first term left %s; want %s", show(got), show(second))
			}
			e.release(s, election, second.Token)
			third := e.acquire(other, election, "3")
			e.release(s, election, second.Token)
			e.release(s, election, third.Token)
			if got := e.holds(other, election); !same(got, third) {
				e.Errorf("releases by another session left %s; want %s", show(got), show(third))
			}
		},
	},
	{
		Name: "ReleaseZeroFromAnyState",
		Why:  "the answer to an acquire was lost and nobody knows what is held: releasing without a token finds out (A6, B10)",
		run: func(e *env) {
			election := e.election("e")
			s, other := e.open(e.handle(), "s"), e.open(e.handle(), "other")
			e.acquire(s, election, "v")
			e.release(s, election, 0)
			e.vacant(election)
			e.release(s, election, 0)

			held := e.acquire(other, election, "v")
			e.refused(s, election, true)
			e.release(s, election, 0) // its place in the queue, where there is one
			e.release(other, election, held.Token)
			e.vacant(election)

			e.acquire(other, election, "v")
			e.refused(s, election, true)
			e.release(other, election, 0)
			e.wins(s, election, "w") // it may have been handed over already
			e.release(s, election, 0)
			e.release(s, election, 0)
			e.vacant(election)
			if grant := e.keepAlive(s); len(grant.Holds) > 0 {
				e.Errorf("after Release the grant says that the session holds %v", grant.Holds)
			}
		},
	},
	{
		Name: "FailedReleaseIsRetried",
		Why:  "a resignation that failed forgot what it was to give up, its retry did nothing, and nobody led (B10)",
		run: func(e *env) {
			election := e.election("e")
			s, holder := e.open(e.handle(), "s"), e.open(e.handle(), "holder")
			cancelled, cancel := context.WithCancel(e.Context())
			cancel()
			for _, byToken := range []bool{true, false} {
				r := e.acquire(s, election, "v")
				token := r.Token
				if !byToken {
					token = 0
				}
				if err := s.Release(cancelled, election, token); !errors.Is(err, context.Canceled) {
					e.Errorf("Release with an ended context: %v", err)
				}
				e.release(s, election, token)
				e.vacant(election)
			}
			held := e.acquire(holder, election, "v")
			e.refused(s, election, true)
			if err := s.Release(cancelled, election, 0); !errors.Is(err, context.Canceled) {
				e.Errorf("Release with an ended context: %v", err)
			}
			e.release(s, election, 0) // its place in the queue, where there is one
			e.release(holder, election, held.Token)
			e.vacant(election)

			r := e.acquire(s, election, "v")
			doomed, late := context.WithTimeout(e.Context(), time.Microsecond)
			defer late()
			_ = s.Release(doomed, election, r.Token) // which may or may not have an effect
			e.release(s, election, r.Token)
			e.vacant(election)
		},
	},
	{
		Name: "CancelledCallsLeaveNothing",
		Why:  "a campaign that was cancelled left its place in the queue, or the election itself, and everybody waited for it (B2, B4)",
		run: func(e *env) {
			election := e.election("e")
			s, holder := e.open(e.handle(), "s"), e.open(e.handle(), "holder")
			other := e.open(e.handle(), "other")
			// The instants are spread over what one request takes here, measured.
			start := time.Now()
			held := e.acquire(holder, election, "v")
			span := max(time.Since(start), 50*time.Microsecond) * 2
			const rounds = 40
			strays := 0
			// What was cancelled may still be on its way when Release is called, and then be found by a renewal, as the contract has it. Someone
			// who wants the election gets it in any case.
			gets := func(s2 driver.Session) (r driver.Record) {
				e.Helper()
				e.eventually(func() string {
					if token := e.keepAlive(s).Holds[election]; token != 0 {
						strays++
						e.release(s, election, token)
					}
					var err error
					if r, err = s2.Acquire(e.context(), driver.Bid{Election: election, Value: []byte("v")}); err != nil {
						return fmt.Sprintf("all that was cancelled was released, yet Acquire says %v: %s", err, show(r))
					}
					return ""
				})
				return r
			}
			for i := range rounds {
				if i%2 == 1 { // the other half finds it held
					e.release(holder, election, held.Token)
				}
				ctx, cancel := context.WithTimeout(e.Context(), span*time.Duration(i)/rounds)
				_, err := campaign(ctx, s, driver.Bid{Election: election, Value: []byte("s"), Queue: true})
				cancel()
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					e.Fatalf("round %d: %v; want success or the context's error", i, err)
				}
				e.release(s, election, 0)
				e.release(holder, election, held.Token)
				won := gets(other)
				e.grows(held, won, "a cancelled campaign")
				e.release(other, election, won.Token)
				held = gets(holder)
			}
			if strays > rounds/4 {
				e.Errorf("%d of %d cancelled campaigns were found to hold the election after they had been released", strays, rounds)
			}
		},
	},
}
