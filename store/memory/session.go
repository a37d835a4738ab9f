package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gotenure/tenure/driver"
)

// A session is a member's lease. Its fields below done are guarded by the mutex of its state.
type session struct {
	store  *Store // the handle through which it was opened
	id     string
	member string
	ttl    time.Duration

	changed chan struct{} // buffer of one
	done    chan struct{} // closed by state.end

	closing sync.Once
	closed  chan struct{} // closed by Close, whether or not it could end the session

	ended    bool
	expires  time.Time
	timer    *time.Timer
	held     map[string]*election
	queued   map[string]*election
	waiting  map[string]*election
	reported map[string]uint64 // what its calls have reported to hold, for Grant.Holds
}

var errSessionClosed = errors.New("memory: session is closed")

var _ driver.Session = (*session)(nil)

func (st *state) open(store *Store, member string, ttl time.Duration) *session {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.opened++
	s := &session{
		store:    store,
		id:       "session-" + strconv.FormatUint(st.opened, 10),
		member:   member,
		ttl:      ttl,
		changed:  make(chan struct{}, 1),
		done:     make(chan struct{}),
		closed:   make(chan struct{}),
		expires:  time.Now().Add(ttl),
		held:     make(map[string]*election),
		queued:   make(map[string]*election),
		waiting:  make(map[string]*election),
		reported: make(map[string]uint64),
	}
	s.timer = time.AfterFunc(ttl, s.expire)
	st.sessions[s.id] = s
	if st.members[member] == nil {
		st.members[member] = make(map[*session]struct{})
	}
	st.members[member][s] = struct{}{}
	return s
}

// lapsed reports whether the session is over, even if its timer has yet to say so. The mutex is held.
func (s *session) lapsed() bool { return s.ended || !time.Now().Before(s.expires) }

// expire is what the timer calls.
func (s *session) expire() {
	st := s.store.state
	st.mu.Lock()
	defer st.mu.Unlock()
	if s.lapsed() { // else it was renewed while the timer fired, and the timer is set again
		st.end(s)
	}
}

// end forgets the session and frees all it holds, in the order of the names so that tokens come out the same each time. The mutex is held.
func (st *state) end(s *session) {
	if s.ended {
		return
	}
	s.ended = true
	s.timer.Stop()
	delete(st.sessions, s.id)
	delete(st.members[s.member], s)
	if len(st.members[s.member]) == 0 {
		delete(st.members, s.member)
	}
	for _, e := range s.queued {
		st.unqueue(e, s)
	}
	for _, e := range s.waiting {
		delete(e.waits, s)
	}
	for _, name := range slices.Sorted(maps.Keys(s.held)) {
		st.vacate(s.held[name])
	}
	close(s.done)
	signal(s.changed)
}

// live takes the mutex and proves that the session lives; unless it returns an error the caller unlocks.
func (s *session) live(ctx context.Context) error {
	if err := s.store.ready(ctx); err != nil {
		return err
	}
	st := s.store.state
	st.mu.Lock()
	if s.lapsed() {
		st.end(s)
		st.mu.Unlock()
		return driver.ErrSessionLost
	}
	select {
	case <-s.closed:
		st.mu.Unlock()
		return errSessionClosed
	default:
		return nil
	}
}

func (s *session) ID() string { return s.id }

func (s *session) Changed() <-chan struct{} { return s.changed }

func (s *session) KeepAlive(ctx context.Context) (driver.Grant, error) {
	if err := s.live(ctx); err != nil {
		return driver.Grant{}, err
	}
	defer s.store.state.mu.Unlock()
	s.expires = time.Now().Add(s.ttl)
	s.timer.Reset(s.ttl)
	grant := driver.Grant{TTL: s.ttl}
	holds := make(map[string]uint64, len(s.held))
	for name, e := range s.held {
		holds[name] = e.token
		if e.asked {
			if grant.Asked == nil {
				grant.Asked = make(map[string]uint64)
			}
			grant.Asked[name] = e.token
		}
	}
	if !maps.Equal(holds, s.reported) {
		grant.Holds = holds
	}
	for other := range s.store.state.members[s.member] {
		if other != s && !other.lapsed() && (grant.Namesake == "" || other.id < grant.Namesake) {
			grant.Namesake = other.id
		}
	}
	return grant, nil
}

func (s *session) Acquire(ctx context.Context, bid driver.Bid) (driver.Record, error) {
	if err := driver.CheckName("election", bid.Election); err != nil {
		return driver.Record{}, err
	}
	if len(bid.Value) > maxValue {
		return driver.Record{}, fmt.Errorf("%w: value of %q has %d bytes: shorten it to at most %d", driver.ErrInvalid, bid.Election, len(bid.Value), maxValue)
	}
	if err := s.live(ctx); err != nil {
		return driver.Record{}, err
	}
	st := s.store.state
	defer st.mu.Unlock()
	e := st.election(bid.Election)
	switch e.holder {
	case s:
		if !bytes.Equal(e.value, bid.Value) {
			e.value = bytes.Clone(bid.Value)
			st.changed(e)
		}
	case nil:
		st.give(e, s, bytes.Clone(bid.Value))
	default:
		if bid.Queue {
			st.enqueue(e, s, bytes.Clone(bid.Value))
		}
		if w := e.waits[s]; w == nil || w.woken {
			e.waits[s] = &wait{wake: make(chan struct{})}
			s.waiting[e.name] = e
		}
		delete(s.reported, e.name)
		return st.record(e.name), driver.ErrHeld
	}
	s.unwait(e)
	s.reported[e.name] = e.token
	return st.record(e.name), nil
}

// unwait forgets what stood between Acquire and Await, and wakes an Await that is still there. The mutex is held.
func (s *session) unwait(e *election) {
	if w := e.waits[s]; w != nil {
		w.notify()
		delete(e.waits, s)
	}
	delete(s.waiting, e.name)
}

func (s *session) Await(ctx context.Context, name string) error {
	if err := s.live(ctx); err != nil {
		return err
	}
	st := s.store.state
	e := st.settled(name)
	if e == nil || e.waits[s] == nil || e.holder == nil || e.holder == s {
		st.mu.Unlock()
		return nil
	}
	wake := e.waits[s].wake
	st.mu.Unlock()
	select {
	case <-wake:
		return nil
	case <-s.done:
		return driver.ErrSessionLost
	case <-s.store.done:
		return errClosed
	case <-s.closed:
		// Close is ending the session, unless its context has ended; then the session is left to lapse.
		return errSessionClosed
	case <-ctx.Done():
		return fmt.Errorf("memory: %w", ctx.Err())
	}
}

func (s *session) Release(ctx context.Context, name string, token uint64) error {
	if err := s.store.ready(ctx); err != nil {
		return err
	}
	st := s.store.state
	st.mu.Lock()
	defer st.mu.Unlock()
	e := st.settled(name)
	if e == nil || s.ended {
		return nil
	}
	if token == 0 {
		st.unqueue(e, s)
		s.unwait(e)
	}
	if token == 0 || s.reported[name] == token {
		delete(s.reported, name)
	}
	if e.holder == s && (token == 0 || e.token == token) {
		st.vacate(e)
	}
	return nil
}

func (s *session) Close(ctx context.Context) error {
	s.closing.Do(func() { close(s.closed) })
	if err := s.store.ready(ctx); err != nil {
		return err
	}
	st := s.store.state
	st.mu.Lock()
	defer st.mu.Unlock()
	st.end(s)
	return nil
}
