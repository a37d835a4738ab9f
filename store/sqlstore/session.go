package sqlstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/gotenure/tenure/driver"
)

// A session is a member's lease, with what this process believes that it holds and waits for. The database knows better: KeepAlive compares.
type session struct {
	store  *Store
	id     string
	member string
	ttl    time.Duration

	changed chan struct{} // buffer of one; nil when the store cannot push
	done    chan struct{} // closed when the session is over for this process
	kick    chan struct{} // wakes the worker: due or overdue has changed

	mu       sync.Mutex
	over     error             // why done is closed
	reported map[string]uint64 // what calls have reported to hold, by election
	busy     map[string]int    // calls under way, by election
	touched  map[string]bool   // elections that had a call while KeepAlive runs; nil: it does not run
	waits    map[string]*wait
	strays   map[string]int64 // places at the store that nobody here is known to want, as the last KeepAlive saw them
	newest   int64            // the greatest token ever held
	cursor   int64            // the place after which to look for elections that nobody holds
	due      time.Time        // when to look for a holder to replace; zero: not before the next KeepAlive
	overdue  []string         // sessions to free in passing
	first    bool             // to look for broken ties
}

// A wait is for one election. With a place in the queue it is there from before Acquire was sent until the election is won or released, so that a notification
// between Acquire and Await is not missed; without one, only while Await runs.
type wait struct {
	wake    chan struct{} // buffer of one
	woken   bool          // since the last Acquire began
	place   int64         // in the queue; 0: none that is known
	nonce   int64         // of the place
	value   uint64        // a hash of what the place publishes
	granted uint64        // the token of a term that this session was given while it waited; 0: none that is known
	proven  bool          // that it was: by the nonce
	since   int64         // when, if proven; µs since the epoch
	seen    uint64        // granted, as a KeepAlive saw it: nobody has come to take it since
	lapses  time.Time     // without a place: when the holder expires unless renewed
}

var (
	_ driver.Session = (*session)(nil)
	_ driver.Waker   = (*session)(nil)
)

func (s *Store) add(id, member string, ttl time.Duration) (*session, error) {
	n := &session{store: s, id: id, member: member, ttl: ttl, done: make(chan struct{}), kick: make(chan struct{}, 1),
		reported: make(map[string]uint64), busy: make(map[string]int), waits: make(map[string]*wait)}
	if s.info.Push {
		n.changed = make(chan struct{}, 1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("%s: %w", s.d.Name, errClosed)
	}
	s.sessions[id] = n
	s.workers.Go(n.work)
	return n, nil
}

func (n *session) ID() string { return n.id }

func (n *session) Changed() <-chan struct{} { return n.changed }

// end makes the session over for this process.
func (n *session) end(why error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over != nil {
		return
	}
	n.over = why
	close(n.done)
	signal(n.changed)
	for _, w := range n.waits {
		w.stir()
	}
}

// lose ends a session that the store has let go, and returns the error for it.
func (n *session) lose(why error) error {
	n.end(fmt.Errorf("%s: %w: %w", n.store.d.Name, driver.ErrSessionLost, why))
	n.leaveStore()
	return n.alive()
}

func (n *session) leaveStore() {
	s := n.store
	s.mu.Lock()
	_, here := s.sessions[n.id]
	delete(s.sessions, n.id)
	s.mu.Unlock()
	if here && s.opts.Bound != nil {
		s.opts.Bound.Untie(n.id)
	}
}

// alive returns why the session is over.
func (n *session) alive() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.over
}

var (
	errExpired = errors.New("it was not renewed in time, or somebody removed it")
	errUntied  = errors.New("the connection that it was bound to is gone")
)

// run runs a script of the session. Without tables there is no session, and an engine may know that it is lost.
func (n *session) run(ctx context.Context, script Script) ([][]Row, error) {
	answer, err := n.store.run(ctx, script)
	if errors.Is(err, ErrNoTables) {
		n.store.damaged.Store(true)
	}
	if errors.Is(err, ErrNoTables) || errors.Is(err, driver.ErrSessionLost) {
		return nil, n.lose(err)
	}
	return answer, err
}

// begin and the func it returns bracket a call for an election.
func (n *session) begin(election string) (func(), error) {
	if err := driver.CheckName("election", election); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over != nil {
		return nil, n.over
	}
	n.busy[election]++
	if n.touched != nil {
		n.touched[election] = true
	}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.busy[election]--; n.busy[election] == 0 {
			delete(n.busy, election)
		}
		if n.touched != nil {
			n.touched[election] = true
		}
	}, nil
}

// Acquire implements driver.Session.
func (n *session) Acquire(ctx context.Context, bid driver.Bid) (_ driver.Record, err error) {
	if len(bid.Value) > MaxValue {
		return driver.Record{}, fmt.Errorf("%w: value for election %q has %d bytes: publish at most %d", driver.ErrInvalid, bid.Election, len(bid.Value), MaxValue)
	}
	done, err := n.begin(bid.Election)
	if err != nil {
		return driver.Record{}, err
	}
	defer done()

	n.mu.Lock()
	w := n.waits[bid.Election]
	if w == nil && bid.Queue {
		w = &wait{wake: make(chan struct{}, 1), nonce: newNonce()}
		n.waits[bid.Election] = w
	}
	granted := w != nil && w.granted != 0
	if granted && w.proven && w.value == hash(bid.Value) {
		st := state{Record: driver.Record{Election: bid.Election, Leader: n.member, Session: n.id, Token: w.granted, Value: bytes.Clone(bid.Value), AcquiredAt: time.UnixMicro(w.since)}}
		n.wonLocked(st)
		n.mu.Unlock()
		return st.Record, nil
	}
	if w != nil {
		w.calm()
		defer func() { n.settle(bid.Election, w, err) }()
	}
	n.mu.Unlock()

	if granted {
		// This session was told that it is the holder now. Proof of it needs no commit, and no value to publish: it came with the place.
		answer, err := n.run(ctx, Script{Name: "acquire", ReadOnly: true, Stmts: []Stmt{n.store.st.get.with(bid.Election)}})
		if err != nil {
			return driver.Record{}, err
		}
		if len(answer[0]) == 1 {
			st, err := n.store.parse(answer[0][0])
			if err == nil && st.Session == n.id && string(st.Value) == string(bid.Value) {
				return n.won(st), nil
			}
		}
	}
	for attempt := 1; ; attempt++ {
		st, row, err := n.attempt(ctx, bid, w)
		if err != nil {
			return driver.Record{}, err
		}
		if st.Session == n.id {
			return n.won(st), nil
		}
		if st.holder != "" && st.remaining <= 0 && attempt < 3 {
			freed, err := n.store.free(ctx, st.holder, false)
			if err != nil {
				return driver.Record{}, err
			}
			if freed {
				continue
			}
		}
		return n.refused(st, row)
	}
}

// settle is for the wait of an Acquire that ended with err, if with any.
func (n *session) settle(election string, w *wait, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case err == nil || errors.Is(err, driver.ErrHeld) || n.waits[election] != w:
	case (errors.Is(err, driver.ErrCorrupt) || errors.Is(err, driver.ErrInvalid)) && w.place == 0:
		delete(n.waits, election) // no place was taken
	default:
		w.stir() // it may have a place or the election by now: the caller asks again
	}
}

// attempt runs the script of Acquire once and returns the record after it, and its row.
func (n *session) attempt(ctx context.Context, bid driver.Bid, w *wait) (state, Row, error) {
	st, d := n.store.st, n.store.d
	value := bid.Value
	if value == nil {
		value = []byte{}
	}
	script := []Stmt{st.live.with(n.id), st.create.with(bid.Election, n.id)}
	if d.RowLocks {
		script = append(script, st.lock.with(bid.Election))
	}
	taken := len(script)
	script = append(script, all(st.take, bid.Election, n.id, n.member, value)...)
	script = append(script, st.drop.with(bid.Election, n.id))
	if bid.Queue {
		n.mu.Lock()
		w.value = 0 // until the answer is here it is not known what the place publishes
		if w.place == 0 || w.granted != 0 {
			// A place that was served or lost may yet be heard of: what proves a transfer to it must prove none to the next.
			w.nonce, w.proven = newNonce(), false
		}
		nonce := w.nonce
		n.mu.Unlock()
		script = append(script, st.enqueue.with(bid.Election, n.id, value, nonce))
	}
	script = append(script, st.read.with(bid.Election, n.id))
	answer, err := n.run(ctx, Script{Name: "acquire", Stmts: script})
	if err != nil {
		return state{}, nil, err
	}
	if bid.Queue {
		n.mu.Lock()
		w.value = hash(bid.Value)
		n.mu.Unlock()
	}
	rows := answer[len(answer)-1]
	if len(answer[0]) == 0 || len(rows) == 0 {
		return state{}, nil, n.lose(errExpired)
	}
	n.store.moved(answer[taken])
	record, err := n.store.parse(rows[0])
	return record, rows[0], err
}

// won notes that an election is held.
func (n *session) won(st state) driver.Record {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.wonLocked(st)
}

func (n *session) wonLocked(st state) driver.Record {
	delete(n.waits, st.Election)
	n.reported[st.Election] = st.Token
	n.newest = max(n.newest, int64(st.Token))
	return st.Record
}

// refused notes that another session holds an election.
func (n *session) refused(st state, row Row) (driver.Record, error) {
	if st.holder == "" {
		return driver.Record{}, fmt.Errorf("%s: election %q is vacant and yet was not given to session %s", n.store.d.Name, st.Election, n.id)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.reported, st.Election)
	if w := n.waits[st.Election]; w != nil {
		w.place = number(row[8])
		if w.granted <= st.Token {
			w.granted, w.seen, w.proven = 0, 0, false
		}
		if w.place != 0 && number(row[9]) == 1 && n.store.opts.Bound != nil {
			n.setFirst(true)
		}
		if w.place != 0 && number(row[9]) == 1 && st.remaining <= n.horizon() {
			n.setDue(time.Now().Add(st.remaining))
		}
	}
	if st.Session == "" { // it has expired, and its last renewal, or its end, is being committed
		st.Leader, st.Session = st.member, st.holder
	}
	return st.Record, fmt.Errorf("%s: election %q: %w", n.store.d.Name, st.Election, driver.ErrHeld)
}

// Release implements driver.Session.
func (n *session) Release(ctx context.Context, election string, token uint64) error {
	done, err := n.begin(election)
	if errors.Is(err, driver.ErrSessionLost) {
		return nil // and so is all that it held
	}
	if err != nil {
		return err
	}
	defer done()
	if token > 0 {
		_, err := n.release(ctx, election, token)
		return err
	}
	for {
		answer, err := n.run(ctx, Script{Name: "release", ReadOnly: true, Stmts: []Stmt{n.store.st.find.with(election, n.id)}})
		if err != nil {
			return released(err)
		}
		token, place := number(answer[0][0][0]), number(answer[0][0][1])
		if token <= 0 && place <= 0 {
			n.mu.Lock()
			delete(n.waits, election)
			delete(n.reported, election)
			n.mu.Unlock()
			return nil
		}
		// Whatever is found may be gone before it is given up: a place becomes a term when its turn comes. Then look again.
		if token > 0 {
			if _, err := n.release(ctx, election, uint64(token)); err != nil {
				return err
			}
		}
		if place > 0 {
			if _, err := n.leave(ctx, election, place); err != nil {
				return released(err)
			}
		}
	}
}

// released makes success of an error that says that the session, and all it held, is gone.
func released(err error) error {
	if errors.Is(err, driver.ErrSessionLost) {
		return nil
	}
	return err
}

// release gives up one term.
func (n *session) release(ctx context.Context, election string, token uint64) (bool, error) {
	if token > 1<<63-1 {
		return false, nil
	}
	st := n.store.st
	var script []Stmt
	if n.store.d.RowLocks {
		script = append(script, st.lockTerm.with(election, n.id, int64(token)))
	}
	at := len(script)
	answer, err := n.run(ctx, Script{Name: "release", Stmts: append(script, all(st.transfer, election, n.id, int64(token))...)})
	if err != nil {
		return false, released(err)
	}
	n.mu.Lock()
	if n.reported[election] == token {
		delete(n.reported, election)
	}
	if w := n.waits[election]; w != nil && w.granted == token {
		delete(n.waits, election)
	}
	n.mu.Unlock()
	n.store.moved(answer[at])
	return len(answer[at]) > 0, nil
}

// leave gives up one place in a queue, and reports whether it was there.
func (n *session) leave(ctx context.Context, election string, place int64) (bool, error) {
	st := n.store.st
	var script []Stmt
	if n.store.d.RowLocks {
		script = append(script, st.lock.with(election))
	}
	script = append(script, st.leave.with(election, n.id, place))
	answer, err := n.run(ctx, Script{Name: "release", Stmts: script})
	if err != nil {
		return false, err
	}
	return len(answer[len(answer)-1]) > 0, nil
}

// Close implements driver.Session.
func (n *session) Close(ctx context.Context) error {
	n.end(fmt.Errorf("%s: session %s: %w", n.store.d.Name, n.id, errClosed))
	n.leaveStore()
	_, err := n.store.free(ctx, n.id, true)
	if errors.Is(err, ErrNoTables) {
		return nil
	}
	return err
}

// newNonce returns a number that nobody can guess, and not 0.
func newNonce() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return int64(binary.LittleEndian.Uint64(b[:])>>1 | 1)
}

var seed = maphash.MakeSeed()

func hash(value []byte) uint64 { return maphash.Bytes(seed, value) }

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
