package drivertest

import (
	"errors"
	"fmt"
	"time"

	"github.com/gotenure/tenure/driver"
)

var sessionCases = []Case{
	{
		Name: "SessionsDiffer",
		Why:  "ownership is by session: an ID that comes twice makes two leaders (S7)",
		run: func(e *env) {
			ids := make(map[string]bool)
			for _, store := range []driver.Store{e.store, e.handle()} {
				for range 10 {
					s := e.open(store, "same member")
					if id := s.ID(); id == "" || ids[id] {
						e.Fatalf("session ID %q is empty or was given before", id)
					}
					ids[s.ID()] = true
				}
			}
		},
	},
	{
		Name: "KeepAliveKeeps",
		Why:  "a session that is renewed holds what it holds, under the same token",
		run: func(e *env) {
			election := e.election("e")
			m := e.mortal(e.handle(), e.election("m")) // other cases have members named m, at the same time
			r := e.acquire(m, election, "v")
			// Three TTLs have to pass while the mortal is kept.
			time.Sleep(3 * e.short)
			m.stop()
			grant := e.keepAlive(m)
			if grant.TTL != e.short {
				e.Errorf("granted %v of %v", grant.TTL, e.short)
			}
			if grant.Holds != nil || len(grant.Asked) > 0 || grant.Namesake != "" {
				e.Errorf("nothing has happened, yet the grant is %+v", grant)
			}
			if got := e.holds(m, election); !same(got, r) {
				e.Errorf("after three TTLs %s; want %s", show(got), show(r))
			}
		},
	},
	{
		Name: "UnrenewedSessionLapses",
		Why:  "a dead leader is replaced within its TTL, not before it, by the store's own clock (L2, S9)",
		run: func(e *env) {
			election := e.election("e")
			m := e.mortal(e.handle(), "m")
			r := e.acquire(m, election, "v")
			earliest := m.die()
			var got driver.Record
			var at time.Time
			e.eventually(func() string {
				got = e.get(election)
				at = time.Now()
				if got.Held() {
					return show(got) + "; want it vacant because its session has lapsed"
				}
				return ""
			})
			if at.Before(earliest) {
				e.Errorf("the election was free %v before its holder's TTL of %v had passed", earliest.Sub(at), e.short)
			}
			if got.Token != 0 && got.Token != r.Token {
				e.Errorf("token was %d and is %d in the vacant record", r.Token, got.Token)
			}
			e.lost(m, election)
		},
	},
	{
		Name: "RenewalNeverRevives",
		Why:  "a late renewal that brought a dead session back would take the lock again from under its successor (B1, B3, E4)",
		run: func(e *env) {
			election := e.election("e")
			m := e.mortal(e.handle(), "m")
			m.buried() // nobody has taken anything over
			e.lost(m, election)

			m = e.mortal(e.handle(), "m")
			old := e.acquire(m, election, "old")
			m.die()
			next := e.open(e.handle(), "m") // the same member came back
			won := e.wins(next, election, "new")
			e.grows(old, won, "expiry")
			for range 3 {
				e.lost(m, election)
			}
			e.release(m, election, old.Token)
			e.release(m, election, won.Token)
			e.release(m, election, 0)
			_ = m.Close(e.context())
			if got := e.holds(next, election); !same(got, won) {
				e.Errorf("what the dead session did left %s; want %s", show(got), show(won))
			}
		},
	},
	{
		Name:   "SessionIsSharedByElections",
		Why:    "one heartbeat keeps all that a member holds; one per election multiplies the load (C2)",
		absent: needsSharing,
		run: func(e *env) {
			const n = 30
			m := e.mortal(e.handle(), "m")
			var records []driver.Record
			for i := range n {
				records = append(records, e.acquire(m, e.election(fmt.Sprint(i)), fmt.Sprint("value ", i)))
			}
			// More than one TTL has to pass: what the heartbeat did not renew would lapse.
			time.Sleep(2 * e.short)
			for _, want := range records {
				if got := e.get(want.Election); !same(got, want) {
					e.Errorf("%s; want %s", show(got), show(want))
				}
			}
			e.release(m, records[0].Election, records[0].Token)
			e.vacant(records[0].Election)
			e.holds(m, records[1].Election)
			earliest := m.die()
			other := e.open(e.handle(), "other")
			for _, old := range records[1:] {
				e.grows(old, e.wins(other, old.Election, "v"), "expiry")
			}
			if now := time.Now(); now.Before(earliest) {
				e.Errorf("all was free %v too early", earliest.Sub(now))
			}
		},
	},
	{
		Name: "CloseFreesAtOnce",
		Why:  "followers must not wait out the lease of a leader that left in good order; leaving can be tried again (B6, C3)",
		run: func(e *env) {
			election := e.election("e")
			s := e.open(e.handle(), "m")
			other := e.open(e.handle(), "other")
			r := e.acquire(s, election, "v")
			if err := s.Close(e.context()); err != nil {
				e.Fatalf("Close: %v", err)
			}
			e.vacant(election)
			e.grows(r, e.acquire(other, election, "w"), "Close")
			if err := s.Close(e.context()); err != nil {
				e.Errorf("Close again: %v", err)
			}
			if _, err := s.KeepAlive(e.context()); err == nil {
				e.Error("KeepAlive of a closed session succeeded")
			}
			if _, err := s.Acquire(e.context(), driver.Bid{Election: e.election("f"), Queue: true}); err == nil || errors.Is(err, driver.ErrHeld) {
				e.Errorf("Acquire by a closed session: %v", err)
			}
			if err := s.Await(e.context(), election); err == nil {
				e.Error("Await by a closed session succeeded")
			}
			e.vacant(e.election("f"))
			e.holds(other, election)
		},
	},
	{
		Name:   "CloseFreesEverything",
		Why:    "a member that leaves in good order hands over all that it held, at once (B6, C3)",
		absent: needsSharing,
		run: func(e *env) {
			const n = 30
			s, other := e.open(e.handle(), "m"), e.open(e.handle(), "other")
			var records []driver.Record
			for i := range n {
				records = append(records, e.acquire(s, e.election(fmt.Sprint(i)), "v"))
				if i%2 == 0 {
					e.refused(other, records[i].Election, true)
				}
			}
			start := time.Now()
			if err := s.Close(e.context()); err != nil {
				e.Fatalf("Close: %v", err)
			}
			for i, old := range records {
				if e.info.Queue && i%2 == 0 {
					e.holds(other, old.Election)
				} else {
					e.vacant(old.Election)
				}
				e.grows(old, e.acquire(other, old.Election, "w"), "Close")
			}
			if took := time.Since(start); took > patience {
				e.Errorf("closing a session with %d elections, and taking them over, took %v", n, took)
			}
		},
	},
	{
		Name: "CloseEndsCalls",
		Why:  "leaving must not wait for a campaign that waits for somebody else (C3)",
		run: func(e *env) {
			election := e.election("e")
			s, holder := e.open(e.handle(), "m"), e.open(e.handle(), "holder")
			e.acquire(holder, election, "v")
			e.refused(s, election, true)
			result := make(chan error, 1)
			go func() {
				_, err := campaign(e.context(), s, driver.Bid{Election: election, Queue: true})
				result <- err
			}()
			// Await should be under way, which nothing shows from outside; if it is not, the case tests less.
			time.Sleep(100 * time.Millisecond)
			start := time.Now()
			if err := s.Close(e.context()); err != nil {
				e.Fatalf("Close: %v", err)
			}
			if err := <-result; err == nil || errors.Is(err, driver.ErrHeld) {
				e.Errorf("campaign of a closed session ended with %v", err)
			}
			if took := time.Since(start); took > patience/2 {
				e.Errorf("Close and the end of Await took %v", took)
			}
			e.holds(holder, election)
		},
	},
	{
		Name: "SameMemberTwice",
		Why:  "two processes that were given one ID both led, or renewed and released each other's lease (S7, B5)",
		run: func(e *env) {
			election := e.election("e")
			first := e.mortal(e.handle(), "twin")
			second := e.open(e.handle(), "twin")
			held := e.acquire(first, election, "first")
			for _, queue := range []bool{false, true} {
				if r := e.refused(second, election, queue); r.Session != first.ID() {
					e.Errorf("refused with %s; want the other session", show(r))
				}
			}
			e.release(second, election, held.Token)
			e.release(second, election, 0)
			if got := e.holds(first, election); !same(got, held) {
				e.Errorf("the second session left %s; want %s", show(got), show(held))
			}
			earliest := first.die()
			// The second session renews and does not wait: a store that renewed both would never let the first one go.
			e.eventually(func() string {
				if grant := e.keepAlive(second); len(grant.Holds) > 0 {
					e.Fatalf("the second session is told that it holds %v", grant.Holds)
				}
				got := e.get(election)
				if now := time.Now(); !got.Held() && now.Before(earliest) {
					e.Fatalf("the first session has lapsed %v too early", earliest.Sub(now))
				}
				if got.Held() {
					return show(got) + "; want it vacant, for only the second session renews"
				}
				return ""
			})
			e.grows(held, e.wins(second, election, "second"), "expiry of the first session")
			e.lost(first, election)
		},
	},
	{
		Name: "NamesakeIsTold",
		Why:  "two processes with one ID are a mistake that somebody should hear of (S7, B5)",
		absent: func(e *env) string {
			if e.h.NoNamesake {
				return "the harness says that the store cannot tell"
			}
			return ""
		},
		run: func(e *env) {
			member := e.election("twin")
			first, second := e.open(e.handle(), member), e.open(e.handle(), member)
			third := e.open(e.handle(), member+"x")
			told := func(s driver.Session, want string) {
				e.eventually(func() string {
					if got := e.keepAlive(s).Namesake; got != want {
						return fmt.Sprintf("KeepAlive of %s tells of the namesake %q; want %q", s.ID(), got, want)
					}
					return ""
				})
			}
			told(first, second.ID())
			told(second, first.ID())
			told(third, "")
			if err := first.Close(e.context()); err != nil {
				e.Fatal(err)
			}
			told(second, "")
		},
	},
}
