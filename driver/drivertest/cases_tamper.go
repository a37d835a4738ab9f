package drivertest

import (
	"errors"
	"fmt"
	"time"

	"github.com/gotenure/tenure/driver"
)

var tamperCases = []Case{
	{
		Name:   "GrantTellsOfDeletion",
		Why:    "somebody deleted the record and the leader worked on for a whole renew deadline, or for ever (A5)",
		absent: needsDelete,
		run: func(e *env) {
			election := e.election("e")
			s, other := e.open(e.handle(), "s"), e.open(e.handle(), "other")
			held := e.acquire(s, election, "v")
			if grant := e.keepAlive(s); grant.Holds != nil {
				e.Errorf("nothing has happened, yet Holds is %v", grant.Holds)
			}
			e.h.DeleteRecord(e, election)
			if grant := e.keepAlive(s); grant.Holds == nil || grant.Holds[election] != 0 {
				e.Errorf("the record was deleted, yet Holds is %v (nil: %t)", grant.Holds, grant.Holds == nil)
			}
			won := e.wins(other, election, "w")
			e.grows(held, won, "deletion")
			e.release(s, election, held.Token)
			e.release(s, election, 0)
			if got := e.holds(other, election); !same(got, won) {
				e.Errorf("releases by the former holder left %s; want %s", show(got), show(won))
			}
			if grant := e.keepAlive(s); len(grant.Holds) > 0 {
				e.Errorf("the session holds nothing, yet Holds is %v", grant.Holds)
			}
		},
	},
	{
		Name:   "GrantTellsOfTheOneDeleted",
		Why:    "of all that a session holds only what was deleted is lost (A5)",
		absent: func(e *env) string { return needsDelete(e) + needsSharing(e) },
		run: func(e *env) {
			s := e.open(e.handle(), "s")
			a, b, c := e.acquire(s, e.election("a"), ""), e.acquire(s, e.election("b"), ""), e.acquire(s, e.election("c"), "")
			e.release(s, c.Election, c.Token)
			e.h.DeleteRecord(e, a.Election)
			grant := e.keepAlive(s)
			if len(grant.Holds) != 1 || grant.Holds[b.Election] != b.Token {
				e.Errorf("Holds is %v; want only %q with token %d", grant.Holds, b.Election, b.Token)
			}
			again := e.acquire(s, a.Election, "")
			e.grows(a, again, "deletion")
			if grant := e.keepAlive(s); grant.Holds != nil {
				e.Errorf("the calls have reported all that is held, yet Holds is %v", grant.Holds)
			}
		},
	},
	{
		Name:   "DeletionIsFollowedByAnotherTerm",
		Why:    "acquiring again after a deletion must not pass the old term off as uninterrupted (S1, A5)",
		absent: needsDelete,
		run: func(e *env) {
			election := e.election("e")
			s := e.open(e.handle(), "s")
			held := e.acquire(s, election, "v")
			e.h.DeleteRecord(e, election)
			e.vacant(election)
			e.grows(held, e.acquire(s, election, "v"), "deletion")
		},
	},
	{
		Name:   "AwaitWakesOnDeletion",
		Why:    "candidates stand before a record that has vanished, and nobody leads (B9)",
		absent: needsDelete,
		run: func(e *env) {
			for _, queue := range []bool{false, true} {
				election := e.election(map[bool]string{false: "beside the queue", true: "in the queue"}[queue])
				holder := e.open(e.handle(), "holder")
				// The waiter renews as any live session does: that is where a driver may look for such a thing.
				m := e.mortal(e.handle(), "m")
				held := e.acquire(holder, election, "v")
				e.refused(m, election, queue)
				result := e.waiting(e.context(), m, election, queue)
				// Await should be under way, which nothing shows from outside; if it is not, the case tests less.
				time.Sleep(50 * time.Millisecond)
				e.h.DeleteRecord(e, election)
				o := <-result
				if o.err != nil {
					e.Fatalf("waiting for an election whose record was deleted: %v", o.err)
				}
				e.grows(held, o.record, "deletion")
			}
		},
	},
	{
		Name:   "GrantTellsOfOverwriting",
		Why:    "a stray client's write made another the leader; both must learn it within a renewal, and neither may harm the other (A5)",
		absent: needsOverwrite,
		run: func(e *env) {
			election := e.election("e")
			s, other := e.open(e.handle(), "s"), e.open(e.handle(), "other")
			held := e.acquire(s, election, "v")
			e.h.OverwriteRecord(e, election, other.ID())
			now := e.holds(other, election)
			e.grows(held, now, "overwriting")
			if grant := e.keepAlive(s); grant.Holds == nil || grant.Holds[election] != 0 {
				e.Errorf("the record was overwritten, yet Holds of the former holder is %v (nil: %t)", grant.Holds, grant.Holds == nil)
			}
			if grant := e.keepAlive(other); grant.Holds[election] != now.Token {
				e.Errorf("Holds of the new holder is %v; want token %d", grant.Holds, now.Token)
			}
			e.release(s, election, held.Token)
			e.release(s, election, 0)
			e.refused(s, election, false)
			if got := e.holds(other, election); got.Token != now.Token {
				e.Errorf("the former holder left %s; want token %d", show(got), now.Token)
			}
			e.release(other, election, now.Token)
			if grant := e.keepAlive(other); len(grant.Holds) > 0 {
				e.Errorf("released what was given by accident, yet Holds is %v", grant.Holds)
			}
			e.grows(now, e.wins(s, election, "v"), "release")
		},
	},
	{
		Name:   "DroppedSessionIsLost",
		Why:    "a session that an operator revoked, or the server forgot, is over at the next renewal, and its elections go on (A5, A12)",
		absent: needsDrop,
		run: func(e *env) {
			election := e.election("e")
			s, other := e.open(e.handle(), "s"), e.open(e.handle(), "other")
			held := e.acquire(s, election, "v")
			e.refused(other, election, true)
			result := e.waiting(e.context(), other, election, true)
			e.h.DropSession(e, s.ID())
			e.lost(s, election)
			// Renewals go on beside the wait: that is where a driver may look for such a thing.
			var o outcome
			e.eventually(func() string {
				e.keepAlive(other)
				select {
				case o = <-result:
					return ""
				default:
					return "nobody takes over from a dropped session: " + show(e.get(election))
				}
			})
			if o.err != nil {
				e.Fatalf("taking over from a dropped session: %v", o.err)
			}
			e.grows(held, o.record, "revocation")
			e.release(s, election, held.Token)
			e.release(s, election, 0)
			e.holds(other, election)
		},
	},
	{
		Name:   "AskedToResign",
		Why:    "an operator asks a leader to hand over; the request belongs to one term and cannot hit the next",
		absent: needsAsker,
		run: func(e *env) {
			election := e.election("e")
			asker := e.handle().(driver.Asker)
			s := e.open(e.handle(), "s")
			if err := asker.Ask(e.context(), election, 1); !errors.Is(err, driver.ErrNotHeld) {
				e.Errorf("Ask of an election that nobody holds: %v; want ErrNotHeld", err)
			}
			held := e.acquire(s, election, "v")
			for _, wrong := range []uint64{held.Token - 1, held.Token + 1, 0} {
				if err := asker.Ask(e.context(), election, wrong); !errors.Is(err, driver.ErrNotHeld) {
					e.Errorf("Ask with token %d of a term with token %d: %v; want ErrNotHeld", wrong, held.Token, err)
				}
			}
			if grant := e.keepAlive(s); len(grant.Asked) > 0 {
				e.Errorf("nobody has asked, yet Asked is %v", grant.Asked)
			}
			for drained := false; !drained; { // of what came before
				select {
				case <-s.Changed():
				default:
					drained = true
				}
			}
			for range 2 {
				if err := asker.Ask(e.context(), election, held.Token); err != nil {
					e.Fatalf("Ask: %v", err)
				}
			}
			if e.info.Push {
				select {
				case <-s.Changed():
				case <-time.After(patience):
					e.Errorf("the store pushes, yet Changed has not received within %v of the request", patience)
				}
			}
			for range 3 { // repeated until the term is over
				if grant := e.keepAlive(s); len(grant.Asked) != 1 || grant.Asked[election] != held.Token {
					e.Errorf("Asked is %v; want %q with token %d", grant.Asked, election, held.Token)
				}
			}
			if again := e.acquire(s, election, "v"); again.Token != held.Token {
				e.Errorf("the request has changed the token from %d to %d", held.Token, again.Token)
			}
			e.release(s, election, held.Token)
			if err := asker.Ask(e.context(), election, held.Token); !errors.Is(err, driver.ErrNotHeld) {
				e.Errorf("Ask of a term that is over: %v; want ErrNotHeld", err)
			}
			e.acquire(s, election, "v")
			if err := asker.Ask(e.context(), election, held.Token); !errors.Is(err, driver.ErrNotHeld) {
				e.Errorf("Ask of the term before: %v; want ErrNotHeld", err)
			}
			if grant := e.keepAlive(s); len(grant.Asked) > 0 {
				e.Errorf("the request was for the term before, yet Asked is %v", grant.Asked)
			}
		},
	},
	{
		Name:   "CorruptRecordIsNamed",
		Why:    "a record that nobody understands is an error that says which, not a crash, and not a reason to lose the others",
		absent: needsCorrupt,
		run: func(e *env) {
			root := e.election("")
			for _, name := range []string{"a", "b", "c"} {
				e.acquire(e.open(e.handle(), "m"), root+name, "v")
			}
			e.h.CorruptRecord(e, root+"b")
			for range 2 { // it stays as it is
				if r, err := e.store.Get(e.context(), root+"b"); !errors.Is(err, driver.ErrCorrupt) {
					e.Errorf("Get of a corrupt record: %s, %v; want ErrCorrupt", show(r), err)
				}
				var good, bad int
				for r, err := range e.store.List(e.context(), root) {
					switch {
					case err == nil && r.Election != root+"b":
						good++
					case errors.Is(err, driver.ErrCorrupt):
						bad++
					default:
						e.Errorf("List yields %s, %v", show(r), err)
					}
				}
				if good != 2 || bad != 1 {
					e.Errorf("List yields %d good records and %d ErrCorrupt; want 2 and 1", good, bad)
				}
				s := e.open(e.handle(), "s")
				if r, err := s.Acquire(e.context(), driver.Bid{Election: root + "b"}); !errors.Is(err, driver.ErrCorrupt) {
					e.Errorf("Acquire of a corrupt record: %s, %v; want ErrCorrupt", show(r), err)
				}
				for r, err := range e.store.Watch(e.context(), root+"b") {
					if !errors.Is(err, driver.ErrCorrupt) {
						e.Errorf("Watch of a corrupt record begins with %s, %v; want ErrCorrupt", show(r), err)
					}
					break
				}
			}
			e.acquire(e.open(e.handle(), "s"), fmt.Sprint(root, "d"), "v")
		},
	},
}
