package consul

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/gotenure/tenure/driver"
)

// A standing is what a session knows of its part in an election. Its fields but election and key are guarded by the session's mutex.
type standing struct {
	election, key string
	reported      uint64 // the token of the term that a call has reported; 0: none
	index         uint64 // of the entry then, or since
	value         []byte // which was published then
	wait          *wait  // after a refusal
	heir          offer

	// doubt is until when a write that would take the election may still have an effect although its caller has given up; zero: there is none.
	doubt time.Time

	calls      int // under way
	generation uint64
}

// A wait is what has to change before Acquire is worth trying.
type wait struct {
	index   uint64
	delayed bool        // nobody holds the election, but its lock-delay keeps it
	over    bool        // Await has seen it vacant
	entry   *api.KVPair // as it was then

	since  uint64 // the index at which another led
	leader string // the session that did
	queue  bool   // it would be the leader's heir
	value  []byte // which it would publish
}

const (
	// doubtful is how long a request is thought to be under way, after its caller has given up. Until then renewals look whether it has had an effect.
	doubtful = 2 * time.Minute

	// retryDelayed is how often an election is tried that a lock-delay keeps: Consul tells nobody when that ends.
	retryDelayed = time.Second
)

// enter begins a call for an election; leave ends it.
func (s *session) enter(election string) *standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.standings[election]
	if n == nil {
		n = &standing{election: election, key: s.store.layout.key(election)}
		s.standings[election] = n
	}
	n.calls++
	n.generation++
	return n
}

func (s *session) leave(n *standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n.calls--
	n.generation++
	s.tidy(n)
}

// tidy forgets a standing that says nothing. The mutex is held.
func (s *session) tidy(n *standing) {
	if !n.doubt.IsZero() && time.Now().After(n.doubt) {
		n.doubt = time.Time{}
	}
	if n.calls == 0 && n.reported == 0 && n.wait == nil && n.heir.key == "" && n.doubt.IsZero() {
		delete(s.standings, n.election)
	}
}

// Acquire takes the election if nobody holds it.
func (s *session) Acquire(ctx context.Context, bid driver.Bid) (driver.Record, error) {
	if err := checkElection(bid.Election); err != nil {
		return driver.Record{}, err
	}
	if len(bid.Value) > maxValue {
		return driver.Record{}, fmt.Errorf("consul: %w: value of %q has %d bytes: shorten it to at most %d", driver.ErrInvalid, bid.Election, len(bid.Value), maxValue)
	}
	if err := s.alive(ctx); err != nil {
		return driver.Record{}, err
	}
	n := s.enter(bid.Election)
	defer s.leave(n)
	r, err := s.acquire(ctx, n, bid)
	return r, s.failed(err)
}

func (s *session) acquire(ctx context.Context, n *standing, bid driver.Bid) (driver.Record, error) {
	if r, err := s.publish(ctx, n, bid); !errors.Is(err, errChanged) {
		return r, err
	}
	entry, known := s.seen(n)
	for {
		var err error
		if !known {
			if entry, err = s.store.read(ctx, n.key); err != nil {
				return driver.Record{}, err
			}
		}
		known = false
		if err := intact(entry); err != nil {
			return driver.Record{}, err
		}
		var token, now uint64
		switch {
		case vacant(entry):
			now, err = s.take(ctx, n, index(entry), encode(bid.Value, 0))
			token = now
		case entry.Session == s.id:
			var value []byte
			switch token, value = decode(entry); {
			case token != entry.ModifyIndex && !s.has(n, token):
				// Somebody else has written the token of another term. This one begins anew.
				now, err = s.take(ctx, n, entry.ModifyIndex, encode(bid.Value, 0))
				token = now
			case bytes.Equal(value, bid.Value):
				now = entry.ModifyIndex
			default:
				now, err = s.store.write(ctx, "publish in "+strconv.Quote(n.election), change(entry.ModifyIndex, s.lockOp(n.key, encode(bid.Value, token))))
			}
		default:
			return s.refuse(ctx, n, entry, bid)
		}
		switch {
		case errors.Is(err, errChanged):
			continue
		case errors.Is(err, errDelayed):
			s.mu.Lock()
			n.reported, n.wait = 0, &wait{index: index(entry), delayed: true}
			s.mu.Unlock()
			return driver.Record{Election: n.election}, fmt.Errorf("consul: election %q is vacant, and %w: %w", n.election, err, driver.ErrHeld)
		case err != nil:
			return driver.Record{}, err
		}
		return s.report(n, token, now, bid.Value), nil
	}
}

// publish replaces the value in a term that the session knows of. errChanged: it knows of none, or has to look first.
func (s *session) publish(ctx context.Context, n *standing, bid driver.Bid) (driver.Record, error) {
	s.mu.Lock()
	token, at, value := n.reported, n.index, n.value
	s.mu.Unlock()
	if token == 0 || bytes.Equal(value, bid.Value) {
		return driver.Record{}, errChanged
	}
	now, err := s.store.write(ctx, "publish in "+strconv.Quote(n.election), change(at, s.lockOp(n.key, encode(bid.Value, token))))
	if err != nil {
		return driver.Record{}, err
	}
	return s.report(n, token, now, bid.Value), nil
}

// report notes that a call says that the session holds the election, and returns what it says.
func (s *session) report(n *standing, token, index uint64, value []byte) driver.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	n.reported, n.index, n.value, n.wait = token, index, bytes.Clone(value), nil
	if n.heir.key != "" && !n.heir.given {
		s.store.run(func() { _ = s.withdraw(s.ctx, n) }) // it ends with the session at the latest
	}
	return driver.Record{Election: n.election, Leader: s.member, Session: s.id, Token: token, Value: bytes.Clone(value)}
}

// has reports whether a call has reported the term with this token, and none since that it is over.
func (s *session) has(n *standing, token uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return n.reported == token
}

// seen returns the entry that Await has seen, once: that it was vacant, or given to this session. An entry of the session's that is older than another's term is of a
// term before.
func (s *session) seen(n *standing) (*api.KVPair, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := n.wait
	if w == nil || !w.over {
		return nil, false
	}
	n.wait = nil
	if !vacant(w.entry) && w.entry.ModifyIndex > w.since {
		n.heir.given = true
		return w.entry, true
	}
	return w.entry, vacant(w.entry)
}

// take takes an election that was vacant at an index. Whatever else happens to the election makes a write that is late without effect.
func (s *session) take(ctx context.Context, n *standing, index uint64, value []byte) (uint64, error) {
	now, err := s.store.write(ctx, "lock key "+strconv.Quote(n.key), change(index, s.lockOp(n.key, value)))
	if err != nil && !errors.Is(err, errChanged) && !errors.Is(err, errDelayed) && !errors.Is(err, driver.ErrSessionLost) && !errors.Is(err, driver.ErrInvalid) {
		s.mu.Lock()
		n.doubt = time.Now().Add(doubtful)
		s.mu.Unlock()
	}
	return now, err
}

// refuse returns ErrHeld with who holds the election, and notes what to wait for.
func (s *session) refuse(ctx context.Context, n *standing, entry *api.KVPair, bid driver.Bid) (driver.Record, error) {
	w := &wait{index: entry.ModifyIndex, since: entry.ModifyIndex, leader: entry.Session, queue: bid.Queue, value: bytes.Clone(bid.Value)}
	s.mu.Lock()
	n.reported, n.wait = 0, w
	s.mu.Unlock()
	r, err := s.store.record(ctx, n.election, entry)
	if err != nil {
		return driver.Record{}, err
	}
	return r, driver.ErrHeld
}

// Await waits until nobody holds the election, or this session does.
func (s *session) Await(ctx context.Context, election string) error {
	if err := s.alive(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	n := s.standings[election]
	if n == nil || n.wait == nil || n.wait.over {
		s.mu.Unlock()
		return nil
	}
	w := n.wait
	s.mu.Unlock()
	return s.failed(s.await(ctx, n, w))
}

func (s *session) await(ctx context.Context, n *standing, w *wait) error {
	var offers sync.WaitGroup
	defer offers.Wait()
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	if w.delayed {
		pause(waiting, retryDelayed)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("consul: wait for %q: %w", n.election, err)
		}
		return context.Cause(waiting)
	}
	var turn sync.Mutex
	leader := ""
	offer := func(to string) {
		if w.queue && to != leader {
			leader = to
			offers.Go(func() {
				turn.Lock()
				defer turn.Unlock()
				s.offer(waiting, n, to, w.value)
			})
		}
	}
	offer(w.leader)
	for {
		entry, next, err := s.store.wait(waiting, n.key, w.index, waitTime, false)
		if err != nil {
			return err
		}
		s.mu.Lock()
		if w.index = next; vacant(entry) || entry.Session == s.id {
			w.over, w.entry = true, entry
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		offer(entry.Session)
	}
}

// Release unlocks the election's key if it is of the term with this token; 0: of the term that it finds, and no write that is late takes it afterwards.
func (s *session) Release(ctx context.Context, election string, token uint64) error {
	if err := s.store.ready(ctx); err != nil {
		return err
	}
	if err := checkElection(election); err != nil {
		return err
	}
	s.mu.Lock()
	lost := s.lost
	s.mu.Unlock()
	if lost {
		return nil
	}
	n := s.enter(election)
	defer s.leave(n)
	if token == 0 {
		// From now on nobody gives it the election; if somebody has, that is found.
		if err := s.withdraw(ctx, n); err != nil && !errors.Is(err, driver.ErrSessionLost) {
			return s.failed(err)
		}
	}
	if err := s.release(ctx, n, token); err != nil && !errors.Is(err, driver.ErrSessionLost) {
		return s.failed(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if token == 0 || n.reported == token {
		n.reported = 0
	}
	if token == 0 {
		n.wait = nil
	}
	return nil
}

func (s *session) release(ctx context.Context, n *standing, token uint64) error {
	s.mu.Lock()
	at, doubt := uint64(0), !n.doubt.IsZero()
	if token != 0 && n.reported == token {
		at = n.index
	}
	s.mu.Unlock()
	if at != 0 {
		if given, err := s.bequeath(ctx, n, at); given || err != nil {
			return err
		}
	}
	for {
		if at == 0 {
			entry, err := s.store.read(ctx, n.key)
			if err != nil {
				return err
			}
			switch {
			case !vacant(entry) && entry.Session == s.id && (token == 0 || tokenOf(entry) == token):
				at = entry.ModifyIndex
			case !vacant(entry) && entry.Session == s.id:
				s.suspect(n, tokenOf(entry))
				return nil
			case token == 0 && doubt && vacant(entry) && intact(entry) == nil:
				if err := s.fence(ctx, n, index(entry)); !errors.Is(err, errChanged) {
					return err
				}
				continue
			default:
				return nil
			}
		}
		_, err := s.store.write(ctx, "release "+strconv.Quote(n.election), change(at, s.unlockOp(n.key)))
		if !errors.Is(err, errChanged) {
			return err
		}
		at = 0
	}
}

// suspect makes renewals look at an election that the session holds by a term that no call has reported: somebody has written to its key. It is not for a release of
// another term to end that.
func (s *session) suspect(n *standing, token uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.reported != token {
		n.doubt = time.Now().Add(doubtful)
	}
}

// fence writes a vacant key, so that a write that would have taken it, and is late, finds another index.
func (s *session) fence(ctx context.Context, n *standing, index uint64) error {
	_, err := s.store.write(ctx, "release "+strconv.Quote(n.election), change(index, &api.KVTxnOp{Verb: api.KVSet, Key: n.key, Flags: flags, Value: []byte(rand.Text())}))
	if err == nil {
		s.mu.Lock()
		n.doubt = time.Time{}
		s.mu.Unlock()
	}
	return err
}
