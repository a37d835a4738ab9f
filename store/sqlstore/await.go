package sqlstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// Await implements driver.Session. It costs no goroutine, and nothing at the store while it waits with a place in the queue.
func (n *session) Await(ctx context.Context, election string) error {
	done, err := n.begin(election)
	if err != nil {
		return err
	}
	done() // what is held does not change here
	n.mu.Lock()
	w := n.waits[election]
	if w == nil {
		w = &wait{wake: make(chan struct{}, 1)}
		n.waits[election] = w
	}
	queued, woken := w.place != 0, w.woken
	n.mu.Unlock()
	if woken {
		return nil
	}
	signal(n.store.stir)
	if !queued {
		defer func() {
			n.mu.Lock()
			if n.waits[election] == w && w.place == 0 {
				delete(n.waits, election)
			}
			n.mu.Unlock()
		}()
		n.store.attend(ctx)
		// What happened since Acquire was not heard here.
		st, err := n.store.get(ctx, election)
		if err != nil {
			return err
		}
		if !st.Held() || st.Session == n.id {
			return nil
		}
		n.mu.Lock()
		w.lapses = time.Now().Add(st.remaining)
		n.mu.Unlock()
		signal(n.kick)
	}
	select {
	case <-w.wake:
		return nil
	case <-n.done:
		return n.alive()
	case <-ctx.Done():
		return fmt.Errorf("%s: wait for election %q: %w", n.store.d.Name, election, ctx.Err())
	}
}

// Wake implements driver.Waker.
func (n *session) Wake(election string) <-chan struct{} {
	n.mu.Lock()
	w := n.waits[election]
	if n.over != nil || w == nil || w.place == 0 {
		n.mu.Unlock()
		return nil
	}
	if w.woken {
		signal(w.wake)
	}
	n.mu.Unlock()
	signal(n.store.stir)
	return w.wake
}

// stir wakes the wait, or whoever waits next. The session's mutex is held.
func (w *wait) stir() {
	w.woken = true
	signal(w.wake)
}

// calm forgets earlier wakes: the Acquire that is about to be sent will see why they came. The session's mutex is held.
func (w *wait) calm() {
	w.woken = false
	select {
	case <-w.wake:
	default:
	}
}

// grantLocked notes that this session was made the holder of what it waits for.
func (n *session) grantLocked(w *wait, token uint64) {
	w.granted, w.proven = token, w.proven && w.granted == token
	n.newest = max(n.newest, int64(token))
	w.stir()
}

// heard digests an event.
func (n *session) heard(e Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.Kind == Asked {
		if e.Session == n.id {
			signal(n.changed)
		}
		return
	}
	if token, held := n.reported[e.Election]; held && e.Session != n.id && e.Token >= token && n.busy[e.Election] == 0 {
		signal(n.changed) // lost, by somebody else's doing
	}
	w := n.waits[e.Election]
	switch {
	case w == nil:
	case e.Session == n.id:
		proven := e.Kind == Given && e.Nonce != 0 && e.Nonce == w.nonce
		if w.proven && !proven && e.Token <= w.granted {
			break // whoever sent this knows less
		}
		n.grantLocked(w, e.Token)
		w.proven, w.since = proven, e.AcquiredAt
	case e.Session == "":
		w.stir()
	}
}

// wakeAll digests the answer to statement vacated. The mutex is held.
func (n *session) wakeAll(rows []Row) {
	for _, row := range rows {
		election := text(row[0])
		if election == "" {
			n.cursor = number(row[1])
		} else if w := n.waits[election]; w != nil {
			w.stir()
		}
	}
}

// setDue makes the worker look no later than at t. The mutex is held.
func (n *session) setDue(t time.Time) {
	if n.due.IsZero() || t.Before(n.due) {
		n.due = t
		signal(n.kick)
	}
}

// setFirst says whether to look for broken ties. The mutex is held.
func (n *session) setFirst(first bool) {
	if first && !n.first {
		signal(n.kick)
	}
	n.first = first
}

// setDueFrom is setDue with the answer to statement due. The mutex is held.
func (n *session) setDueFrom(rows []Row) {
	if len(rows) == 1 && rows[0][0] != nil {
		// A holder that has expired and is still there is being renewed or replaced at this moment.
		n.setDue(time.Now().Add(max(time.Duration(number(rows[0][0]))*time.Microsecond, 20*time.Millisecond)))
	}
}

// work replaces holders that have expired, and frees sessions that nobody waits for, until the session is over.
func (n *session) work() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var looked time.Time // for broken ties
	for {
		n.mu.Lock()
		next := n.due
		for _, w := range n.waits {
			if w.place == 0 && !w.lapses.IsZero() && (next.IsZero() || w.lapses.Before(next)) {
				next = w.lapses
			}
		}
		if n.first && len(n.waits) > 0 {
			if soon := looked.Add(BoundPoll*3/4 + rand.N(BoundPoll/2)); next.IsZero() || soon.Before(next) {
				next = soon
			}
		}
		n.mu.Unlock()
		timer.Stop()
		if !next.IsZero() {
			// Clocks tick in steps of their own: a look too early costs a second one.
			timer.Reset(time.Until(next) + time.Millisecond)
		}
		select {
		case <-n.done:
			return
		case <-n.store.ctx.Done():
			return
		case <-n.kick:
		case <-timer.C:
		}
		now := time.Now()
		n.mu.Lock()
		overdue := n.overdue
		n.overdue = nil
		sweep := !n.due.IsZero() && !now.Before(n.due)
		if sweep {
			n.due = time.Time{}
		}
		ties := n.first && len(n.waits) > 0 && now.Sub(looked) >= BoundPoll*3/4
		for _, w := range n.waits {
			if w.place == 0 && !w.lapses.IsZero() && !now.Before(w.lapses) {
				w.lapses = time.Time{}
				w.stir()
			}
		}
		n.mu.Unlock()
		if sweep {
			n.sweep()
		}
		if ties {
			looked = now
			_ = n.withLimit(n.lookForTies) // the next look is soon
		}
		for _, id := range overdue {
			// What fails is overdue still at the next KeepAlive.
			_ = n.withLimit(func(ctx context.Context) error { _, err := n.store.free(ctx, id, false); return err })
		}
	}
}

// sweep replaces the holders that this session waits for and that have expired.
func (n *session) sweep() {
	s := n.store
	err := n.withLimit(func(ctx context.Context) error {
		answer, err := n.run(ctx, Script{Name: "sweep", ReadOnly: true, Stmts: []Stmt{s.st.overtake.with(n.id)}})
		if err != nil {
			return err
		}
		for _, row := range answer[0] {
			if _, err := s.free(ctx, text(row[0]), false); err != nil {
				return err
			}
		}
		answer, err = n.run(ctx, Script{Name: "sweep", ReadOnly: true, Stmts: []Stmt{s.st.due.with(n.id, n.horizon().Microseconds())}})
		if err != nil {
			return err
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.setDueFrom(answer[0])
		return nil
	})
	if err != nil {
		s.log.Debug("tenure: replacing an expired holder failed, will try again", "store", s.d.Name, "session", n.id, "error", err)
		n.mu.Lock()
		n.setDue(time.Now().Add(50*time.Millisecond + rand.N(min(n.ttl/4, time.Second))))
		n.mu.Unlock()
	}
}

// lookForTies frees what sessions held whose ties are broken.
func (n *session) lookForTies(ctx context.Context) error {
	s := n.store
	answer, err := n.run(ctx, Script{Name: "look for ties", ReadOnly: true, Stmts: []Stmt{s.st.untied.with()}})
	if err != nil {
		return err
	}
	for _, row := range answer[0] {
		if _, err := s.free(ctx, text(row[0]), false); err != nil {
			return err
		}
	}
	return nil
}

// look asks the store what it would have pushed: terms given to this session, and elections that it waits for and nobody holds.
func (n *session) look(ctx context.Context) error {
	n.mu.Lock()
	if len(n.waits) == 0 || n.over != nil {
		n.mu.Unlock()
		return nil
	}
	unqueued := n.unqueuedLocked()
	// Tokens are not committed in their order. What this misses the next KeepAlive finds.
	newest, cursor := max(0, n.newest-1000), n.cursor
	n.mu.Unlock()

	st := n.store.st
	script := []Stmt{st.grants.with(n.id, newest), st.vacated.with(n.id, cursor)}
	for _, election := range unqueued {
		script = append(script, st.get.with(election))
	}
	answer, err := n.run(ctx, Script{Name: "look", ReadOnly: true, Stmts: script})
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, row := range answer[0] {
		if w := n.waits[text(row[0])]; w != nil {
			n.grantLocked(w, uint64(number(row[1])))
		}
		n.newest = max(n.newest, number(row[1]))
	}
	n.wakeAll(answer[1])
	n.wakeUnqueued(unqueued, answer[2:])
	return nil
}

// unqueuedMax bounds what waits without a place in the queue add to a request. Maps are iterated at random: each has its turn.
const unqueuedMax = 64

// unqueuedLocked returns elections that are waited for without a place in the queue, which the statements on waiters do not see. The mutex is held.
func (n *session) unqueuedLocked() []string {
	var unqueued []string
	for election, w := range n.waits {
		if w.place == 0 && len(unqueued) < unqueuedMax {
			unqueued = append(unqueued, election)
		}
	}
	return unqueued
}

// wakeUnqueued wakes the waits of elections that nobody holds by the answers to statement get. The mutex is held.
func (n *session) wakeUnqueued(unqueued []string, answer [][]Row) {
	for i, election := range unqueued {
		w := n.waits[election]
		if w == nil {
			continue
		}
		if rows := answer[i]; len(rows) > 0 {
			if st, err := n.store.parse(rows[0]); err == nil && st.Held() && st.Session != n.id {
				continue
			}
		}
		w.stir()
	}
}

// withLimit bounds what the worker asks of the store: it must not hang on one request while another could be answered.
func (n *session) withLimit(f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(n.store.ctx, max(n.ttl/3, time.Second))
	defer cancel()
	return f(ctx)
}
