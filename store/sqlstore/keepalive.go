package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/gotenure/tenure/driver"
)

// grace is how long after its expiry a session is left to those who wait for what it holds. After it anybody frees it.
const grace = 2 * time.Second

// horizon is how far a KeepAlive looks for holders to replace: until after the next one, which comes after about a third of the TTL.
func (n *session) horizon() time.Duration { return n.ttl / 2 }

// KeepAlive implements driver.Session. It is one script, whatever the number of elections; a second only when the answer is not the expected one.
func (n *session) KeepAlive(ctx context.Context) (driver.Grant, error) {
	if err := n.alive(); err != nil {
		return driver.Grant{}, err
	}
	s, st := n.store, n.store.st
	if b := s.opts.Bound; b != nil && b.Lost(n.id) {
		return driver.Grant{}, n.lose(errUntied)
	}
	n.mu.Lock()
	n.touched = make(map[string]bool, len(n.busy))
	for election := range n.busy {
		n.touched[election] = true
	}
	waiting := len(n.waits) > 0
	unqueued, cursor := n.unqueuedLocked(), n.cursor
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.touched = nil
		n.mu.Unlock()
	}()

	script := []Stmt{st.renew.with(n.id), st.holds.with(n.id), st.places.with(n.id), st.namesake.with(n.id, n.member), st.overdue.with(grace.Microseconds())}
	if waiting {
		script = append(script, st.due.with(n.id, n.horizon().Microseconds()), st.vacated.with(n.id, cursor))
	}
	for _, election := range unqueued {
		script = append(script, st.get.with(election))
	}
	bound := s.opts.Bound != nil && waiting
	if bound {
		script = append(script, st.first.with(n.id))
	}
	answer, err := n.run(ctx, Script{Name: "renew", Urgent: true, Lease: n.ttl, Stmts: script})
	if err != nil {
		return driver.Grant{}, err
	}
	if len(answer[0]) == 0 {
		return driver.Grant{}, n.lose(errExpired)
	}
	grant := driver.Grant{TTL: time.Duration(number(answer[0][0][0])) * time.Microsecond}
	if len(answer[3]) > 0 {
		grant.Namesake = text(answer[3][0][0])
	}
	n.mu.Lock()
	for _, row := range answer[4] {
		if id := text(row[0]); id != n.id {
			n.overdue = append(n.overdue, id)
		}
	}
	if len(n.overdue) > 0 {
		signal(n.kick)
	}
	n.due = time.Time{}
	if waiting {
		n.setDueFrom(answer[5])
		n.wakeAll(answer[6])
		n.wakeUnqueued(unqueued, answer[7:7+len(unqueued)])
	}
	if bound {
		n.setFirst(len(answer[len(answer)-1]) > 0)
	}
	asked := number(answer[1][0][2]) != 0
	expected := n.expects(answer[1][0], answer[2][0])
	n.mu.Unlock()
	if expected && !asked {
		return grant, nil
	}

	answer, err = n.run(ctx, Script{Name: "renew", ReadOnly: true, Urgent: true, Stmts: []Stmt{st.precise.with(n.id)}})
	if errors.Is(err, driver.ErrSessionLost) {
		return driver.Grant{}, err
	}
	if err != nil {
		// The session is renewed. To say that it failed would be wrong, to say that nothing has changed too: the caller renews again.
		return driver.Grant{}, fmt.Errorf("renewed, but what the session holds is not what was expected, and was not told: %w", err)
	}
	if strays := n.compare(answer[0], &grant); len(strays) > 0 {
		n.store.spawn(func() { n.leaveAll(strays) })
	}
	return grant, nil
}

// expects reports whether the numbers and checksums of what the session holds, and of its places, are those of what this process believes.
// The mutex is held.
func (n *session) expects(holds, places Row) bool {
	const modulus = 1 << 32
	var tokens, seqs, queued int64
	for _, token := range n.reported {
		tokens += int64(token % modulus)
	}
	for _, w := range n.waits {
		if w.place != 0 {
			queued++
			seqs += w.place % modulus
		}
	}
	return number(holds[0]) == int64(len(n.reported)) && number(holds[1]) == tokens && number(places[0]) == queued && number(places[1]) == seqs
}

// compare makes what this process believes agree with the rows of statement precise, and fills the grant. Elections that had a call since KeepAlive
// began are left out of the comparison: the call's own answer tells. It returns places to give up.
func (n *session) compare(rows []Row, grant *driver.Grant) map[string]int64 {
	holds, places := make(map[string]uint64), make(map[string]int64)
	for _, row := range rows {
		election, value := text(row[1]), number(row[2])
		switch {
		case number(row[0]) == 2:
			places[election] = value
		case value > 0: // else the record is corrupt, and holds nothing
			holds[election] = uint64(value)
			if number(row[3]) != 0 {
				if grant.Asked == nil {
					grant.Asked = make(map[string]uint64)
				}
				grant.Asked[election] = uint64(value)
			}
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	differs := false
	for election, token := range holds {
		if n.reported[election] == token || n.touched[election] {
			continue
		}
		if w := n.waits[election]; w != nil && w.place != 0 && w.seen != token {
			// It was given to this session, which waits for it: Await tells. If nobody has come for it until the next time, the caller is told too.
			n.grantLocked(w, token)
			w.seen = token
			continue
		}
		differs = true
	}
	for election, token := range n.reported {
		if holds[election] != token && !n.touched[election] {
			delete(n.reported, election)
			differs = true
		}
	}
	if differs {
		grant.Holds = holds
	}

	for election, w := range n.waits {
		if w.place != 0 && places[election] != w.place && w.granted == 0 && !n.touched[election] {
			// Somebody removed the place. The next Acquire takes another.
			w.place = 0
			w.stir()
		} else if w.proven && holds[election] != w.granted && !n.touched[election] {
			// It was given, and somebody took it away since. The next Acquire looks again.
			w.granted, w.seen, w.proven = 0, 0, false
			w.stir()
		}
	}
	// A place that nobody here wants is the effect of an Acquire whose caller gave up. It is given up when it is seen a second time, so that one whose
	// answer is on its way is not.
	strays := n.strays
	n.strays = nil
	for election, place := range places {
		if w := n.waits[election]; w != nil && (w.place == place || w.place == 0) || n.touched[election] {
			continue
		}
		if strays[election] != place {
			if n.strays == nil {
				n.strays = make(map[string]int64)
			}
			n.strays[election] = place
		}
	}
	maps.DeleteFunc(strays, func(election string, place int64) bool {
		return places[election] != place || n.touched[election] || n.waits[election] != nil
	})
	return strays
}

func (n *session) leaveAll(strays map[string]int64) {
	ctx, cancel := context.WithTimeout(n.store.ctx, n.ttl)
	defer cancel()
	for election, place := range strays {
		if _, err := n.leave(ctx, election, place); err != nil {
			return // the next KeepAlive sees them again
		}
	}
}
