package kubernetes

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/gotenure/tenure/driver"
)

// A session is nothing at the server but the holder of Leases. That it lapses is decided here by its own clock, and by everybody else by theirs: see observations.
type session struct {
	store  *Store
	id     string
	member string
	ttl    time.Duration

	changed chan struct{} // buffer of one
	closed  chan struct{} // closed by Close
	closing sync.Once

	mu      sync.Mutex
	expires time.Time
	stands  map[string]*stand
}

// A stand is a session's part in one election. Its fields are guarded by the session's mutex.
type stand struct {
	e         *election
	following bool

	reported  uint64 // the token that its calls have reported; 0: that it does not hold the election
	refused   *lease // what Acquire was refused for; nil: it was not
	doubt     uint64 // the version that a write whose outcome is unknown would replace; 0: there is none
	found     uint64 // the token of the term that such a write has begun, once a read has shown that; 0: there is none
	releasing int    // releases under way
	late      int    // attempts in a row for which another was faster
	told      string // what Changed was last signalled for
}

var errSessionClosed = errors.New("kubernetes: session is closed")

var _ driver.Session = (*session)(nil)

func newSession(store *Store, member string, ttl time.Duration) *session {
	return &session{
		store: store, member: member, ttl: ttl, id: member + "_" + strings.ToLower(rand.Text()),
		changed: make(chan struct{}, 1), closed: make(chan struct{}),
		expires: time.Now().Add(ttl), stands: make(map[string]*stand),
	}
}

func (s *session) ID() string { return s.id }

func (s *session) Changed() <-chan struct{} { return s.changed }

// live returns an error unless the session lives and the call is not too late.
func (s *session) live(ctx context.Context) error {
	if err := s.store.ready(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	expires := s.expires
	s.mu.Unlock()
	if !time.Now().Before(expires) {
		return fmt.Errorf("kubernetes: %w: it was not renewed for %v", driver.ErrSessionLost, s.ttl)
	}
	select {
	case <-s.closed:
		return errSessionClosed
	default:
		return nil
	}
}

// stand returns the session's stand in an election, which it enters unless it is there.
func (s *session) stand(election string) *stand {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stands[election]
	if st == nil {
		st = &stand{e: s.store.use(election)}
		s.stands[election] = st
	}
	return st
}

// follow has the election watched for as long as the session stands in it.
func (s *session) follow(st *stand) {
	s.mu.Lock()
	start := !st.following && s.stands[st.e.name] == st
	st.following = st.following || start
	s.mu.Unlock()
	if start {
		st.e.follow()
		st.e.mu.Lock()
		st.e.holders[s] = struct{}{}
		st.e.mu.Unlock()
	}
}

// forget ends a stand. unless says whether it has to go on after all.
func (s *session) forget(st *stand, unless func() bool) {
	s.mu.Lock()
	if s.stands[st.e.name] != st || unless != nil && unless() {
		s.mu.Unlock()
		return
	}
	delete(s.stands, st.e.name)
	following := st.following
	st.following = false
	s.mu.Unlock()
	s.unfollow(st, following)
	st.e.leave()
}

func (s *session) unfollow(st *stand, following bool) {
	if !following {
		return
	}
	st.e.mu.Lock()
	delete(st.e.holders, s)
	st.e.mu.Unlock()
	st.e.unfollow()
}

// notice is told of every new state of an election that the session follows.
func (s *session) notice(e *election, l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stands[e.name]
	if st == nil || st.e != e || st.reported == 0 || st.releasing > 0 {
		return
	}
	what := ""
	if token, err := l.token(); l.holder != s.id || err != nil || token != st.reported {
		what = fmt.Sprint("lost ", st.reported)
	} else if l.asked() {
		what = fmt.Sprint("asked ", st.reported)
	}
	if what == "" || what == st.told {
		return // each is said once: renewals bring new states too
	}
	st.told = what
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *session) Acquire(ctx context.Context, bid driver.Bid) (driver.Record, error) {
	if err := driver.CheckName("election", bid.Election); err != nil {
		return driver.Record{}, fmt.Errorf("kubernetes: %w", err)
	}
	if len(bid.Value) > maxValue {
		return driver.Record{}, fmt.Errorf("kubernetes: %w: value of %q has %d bytes: shorten it to at most %d", errInvalid, bid.Election, len(bid.Value), maxValue)
	}
	if err := s.live(ctx); err != nil {
		return driver.Record{}, err
	}
	if err := s.store.access.check(ctx, LeaseName(bid.Election)); err != nil {
		return driver.Record{}, err
	}
	st := s.stand(bid.Election)
	r, err := s.acquire(ctx, st, bid)
	switch {
	case err == nil:
		s.follow(st)
		s.store.labels.set(st.e.lease, true)
	case errors.Is(err, driver.ErrHeld):
		if bid.Queue {
			s.follow(st)
		}
	default:
		err = s.store.access.explain(ctx, st.e.lease, err)
	}
	return r, err
}

// acquire takes the Lease as soon as a read or a watch has shown it free. What it believes need not be true: the write is for the version that it has seen, and fails when there is
// another.
func (s *session) acquire(ctx context.Context, st *stand, bid driver.Bid) (driver.Record, error) {
	e := st.e
	l, fresh := e.known(), false
	for range maxConflicts {
		if !fresh && (l == nil || !l.exists() || l.holder != "" && l.holder != s.id && !s.store.seen.expired(l)) {
			var err error
			if l, err = e.fetch(ctx); err != nil {
				return driver.Record{}, err
			}
			fresh = true
		}
		var err error
		if err = s.live(ctx); err != nil {
			return driver.Record{}, err
		}
		if !l.exists() {
			if l, err = e.make(ctx); err != nil && !isChanged(err) {
				return driver.Record{}, err
			} else if err != nil {
				l, fresh = nil, false
			}
			continue
		}
		if err := l.check(); err != nil {
			return driver.Record{}, err
		}
		var object map[string]any
		switch {
		case l.holder == s.id && s.made(st, l):
			object = l.renewedBy(s, &bid.Value)
		case l.holder == "" || l.holder == s.id || s.store.seen.expired(l):
			object = l.taken(s, bid.Election, bid.Value)
		default:
			return s.refuse(st, l)
		}
		sent := time.Now()
		s.doubts(st, l.version)
		written, err := e.write(ctx, object)
		if err == nil || rejected(err) {
			s.doubts(st, 0)
		}
		switch {
		case err == nil:
			return s.won(ctx, st, written, sent)
		case isChanged(err):
			s.mu.Lock()
			st.late++
			s.mu.Unlock()
			// Who follows is told by the watch: a read by each of many who were too late would be for nothing.
			l, fresh = s.newer(ctx, st, l), true
			if l == nil {
				fresh = false
			}
		default:
			return driver.Record{}, err
		}
	}
	return driver.Record{}, contended(e.name)
}

// made reports whether the term of a Lease that the session holds is one that its own writes have begun. Otherwise somebody has edited the annotations, and the token may be
// one that was handed out before: the session takes the Lease anew.
func (s *session) made(st *stand, l *lease) bool {
	token, err := l.token()
	if err != nil || token == 0 || !l.ours() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if token == st.doubt {
		st.found = token
	}
	return token == st.reported || token == st.found
}

// newer waits for the watch to bring a newer state, which exists. It returns nil when the watch does not, or not soon, or brings that there is none.
func (s *session) newer(ctx context.Context, st *stand, l *lease) *lease {
	s.mu.Lock()
	following := st.following
	s.mu.Unlock()
	if !following {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, newsLimit)
	defer cancel()
	st.e.await(ctx, func(now *lease) bool { return now.version > l.version })
	if now := st.e.known(); now != nil && now.exists() && now.version > l.version {
		return now
	}
	return nil
}

// newsLimit is how long to wait for what the watch will bring in a moment.
const newsLimit = time.Second

func (s *session) doubts(st *stand, version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.doubt = version
}

// refuse notes what the session is to wait for the end of.
func (s *session) refuse(st *stand, l *lease) (driver.Record, error) {
	s.mu.Lock()
	st.refused, st.reported, st.told = l, 0, ""
	s.mu.Unlock()
	r, err := l.record(st.e.name, false)
	if err != nil {
		return driver.Record{}, err
	}
	return r, driver.ErrHeld
}

// won notes that the session holds the election, unless the answer came too late.
func (s *session) won(ctx context.Context, st *stand, l *lease, sent time.Time) (driver.Record, error) {
	r, err := l.record(st.e.name, false)
	if err != nil {
		return driver.Record{}, err
	}
	if err := s.live(context.WithoutCancel(ctx)); err != nil {
		_ = s.release(ctx, st, r.Token) // else it lapses
		return driver.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	alone := true
	for _, other := range s.stands {
		alone = alone && (other == st || other.reported == 0)
	}
	// The write has renewed this Lease and no other.
	if until := sent.Add(s.ttl); alone && until.After(s.expires) {
		s.expires = until
	}
	if st.reported != r.Token {
		st.told = ""
	}
	st.reported, st.refused, st.late = r.Token, nil, 0
	return r, nil
}

func (s *session) KeepAlive(ctx context.Context) (driver.Grant, error) {
	if err := s.live(ctx); err != nil {
		return driver.Grant{}, err
	}
	sent := time.Now()
	s.mu.Lock()
	stands := make([]*stand, 0, len(s.stands))
	for _, st := range s.stands {
		stands = append(stands, st)
	}
	s.mu.Unlock()
	grant := driver.Grant{TTL: s.ttl}
	holds, reported := make(map[string]uint64), make(map[string]uint64)
	for _, st := range stands {
		l, err := s.renew(ctx, st)
		if err != nil {
			return driver.Grant{}, s.store.access.explain(ctx, st.e.lease, err)
		}
		s.mu.Lock()
		releasing := st.releasing > 0
		if st.reported != 0 && !releasing {
			reported[st.e.name] = st.reported
		}
		s.mu.Unlock()
		if l == nil || releasing {
			continue
		}
		token, err := l.token()
		if err != nil {
			continue // it was spoilt just now
		}
		holds[st.e.name] = token
		if l.asked() {
			if grant.Asked == nil {
				grant.Asked = make(map[string]uint64)
			}
			grant.Asked[st.e.name] = token
		}
	}
	if !maps.Equal(holds, reported) {
		grant.Holds = holds
	}
	for _, st := range stands {
		if s.isLost(st, holds) {
			s.store.labels.set(st.e.lease, false)
		}
	}
	if err := s.live(context.WithoutCancel(ctx)); err != nil {
		return driver.Grant{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if until := sent.Add(s.ttl); until.After(s.expires) {
		s.expires = until
	}
	return grant, nil
}

func (s *session) isLost(st *stand, holds map[string]uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return st.reported != 0 && holds[st.e.name] == 0
}

// renew renews what the session holds of one election, and returns it, or nil when it holds nothing. Nothing is sent for one who only waits while the watch runs: its session
// is nothing at the server. When the watch does not run, a read shows whether the server can be reached.
func (s *session) renew(ctx context.Context, st *stand) (*lease, error) {
	s.mu.Lock()
	reported, doubt, releasing, following := st.reported, st.doubt, st.releasing > 0, st.following
	s.mu.Unlock()
	v := st.e.view()
	l := v.lease
	mine := l != nil && l.holder == s.id
	if releasing || reported == 0 && doubt == 0 && !mine && !(following && v.failure != nil) {
		return nil, nil
	}
	for range maxConflicts {
		if l == nil || l.holder != s.id {
			var err error
			if l, err = st.e.fetch(ctx); err != nil {
				return nil, err
			}
			if l.holder != s.id {
				s.resolve(st, doubt, l)
				return nil, nil
			}
		}
		if l.check() != nil {
			return nil, nil //nolint:nilerr // somebody has spoilt the record: it cannot be renewed, and is nothing that the session holds
		}
		written, err := st.e.write(ctx, l.renewedBy(s, nil))
		if err == nil {
			s.resolve(st, doubt, written)
			return written, nil
		}
		if !isChanged(err) {
			return nil, err
		}
		l = nil
		s.mu.Lock()
		releasing = st.releasing > 0
		s.mu.Unlock()
		if releasing {
			return nil, nil
		}
	}
	return nil, contended(st.e.name)
}

// resolve ends a doubt when the Lease is not at the version any more that the write in question was for.
func (s *session) resolve(st *stand, doubt uint64, l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.doubt == doubt && l.version != doubt {
		st.doubt = 0
	}
	if token, err := l.token(); err == nil && doubt != 0 && token == doubt && l.holder == s.id {
		st.found = token
	}
}

func worthTrying(v view, refused *lease) bool {
	l := v.lease
	return l != nil && (l.version > refused.version && l.holder != refused.holder || l.holder == "" || v.dead || l.annotations[tokenKey] != refused.annotations[tokenKey])
}

// taken reports whether another live holder has the election.
func (s *session) taken(v view) bool {
	return v.lease.holder != "" && v.lease.holder != s.id && !v.dead && v.lease.check() == nil
}

// restraint returns how long to let others go first. There is no queue: all who wait see a vacancy at once, and all but one write for nothing, at the cost of the one. Who was too
// late before holds back for about as long as a write and its event take, and the more often, the more it is spread.
func (s *session) restraint(st *stand) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.late == 0 {
		return 0
	}
	return restraintMin + mathrand.N(min(restraintMin<<min(st.late, 10), restraintMax))
}

const (
	restraintMin = 8 * time.Millisecond
	restraintMax = 250 * time.Millisecond
)

func (s *session) Await(ctx context.Context, name string) error {
	if err := s.live(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	st := s.stands[name]
	if st == nil || st.refused == nil {
		s.mu.Unlock()
		return nil
	}
	refused := st.refused
	s.mu.Unlock()
	s.follow(st)
	for {
		v := st.e.view()
		if worthTrying(v, refused) {
			if delay := s.restraint(st); delay == 0 || pause(ctx, delay) != nil {
				return s.live(ctx)
			}
			if now := st.e.view(); worthTrying(now, refused) && !s.taken(now) {
				return s.live(ctx)
			}
			// Another has it. That is what is waited for the end of now.
			s.mu.Lock()
			st.refused = st.e.known()
			refused = st.refused
			s.mu.Unlock()
			continue
		}
		s.mu.Lock()
		left := time.Until(s.expires)
		s.mu.Unlock()
		lapse := time.NewTimer(left)
		select {
		case <-v.news:
		case <-lapse.C:
		case <-s.closed:
		case <-s.store.done:
		case <-ctx.Done():
		}
		lapse.Stop()
		if err := s.live(ctx); err != nil {
			return err
		}
	}
}

func (s *session) Release(ctx context.Context, election string, token uint64) error {
	if err := driver.CheckName("election", election); err != nil {
		return fmt.Errorf("kubernetes: %w", err)
	}
	if err := s.store.ready(ctx); err != nil {
		return err
	}
	st := s.stand(election)
	if err := s.release(ctx, st, token); err != nil {
		return s.store.access.explain(ctx, st.e.lease, err)
	}
	s.mu.Lock()
	gone := st.reported == 0
	s.mu.Unlock()
	if gone {
		s.store.labels.clear(ctx, st.e.lease)
	}
	// A session that stands for another term, or waits, goes on doing so.
	s.forget(st, func() bool { return st.doubt != 0 || token != 0 && (st.reported != 0 || st.refused != nil) })
	return nil
}

// release vacates the Lease if the session holds it, in the term with the token when that is not 0.
func (s *session) release(ctx context.Context, st *stand, token uint64) error {
	s.mu.Lock()
	st.releasing++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		st.releasing--
	}()
	holds := func(l *lease) bool {
		if l.holder != s.id {
			return false
		}
		held, err := l.token()
		return token == 0 || err == nil && held == token
	}
	l := st.e.known()
	for range maxConflicts {
		if l == nil || !holds(l) {
			var err error
			if l, err = st.e.fetch(ctx); err != nil {
				return err
			}
		}
		s.mu.Lock()
		doubt := st.doubt
		s.mu.Unlock()
		if !holds(l) && !(token == 0 && doubt != 0 && l.version == doubt) {
			s.released(st, token)
			return nil
		}
		// When a write of ours may still be on its way, writing to the version that it is for keeps it from having an effect. That version is vacant, or its
		// holder was seen to be dead.
		written, err := st.e.write(ctx, l.vacated())
		switch {
		case err == nil:
			s.resolve(st, doubt, written)
			s.released(st, token)
			return nil
		case isChanged(err):
			l = nil
		default:
			return err
		}
	}
	return contended(st.e.name)
}

func (s *session) released(st *stand, token uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if token == 0 {
		st.reported, st.refused, st.doubt = 0, nil, 0
	} else if st.reported == token {
		st.reported = 0
	}
}

// Close releases what the session holds. What it cannot release lapses.
func (s *session) Close(ctx context.Context) error {
	s.closing.Do(func() { close(s.closed) })
	s.mu.Lock()
	stands := make([]*stand, 0, len(s.stands))
	for _, st := range s.stands {
		stands = append(stands, st)
	}
	s.mu.Unlock()
	var failed []error
	for _, st := range stands {
		s.mu.Lock()
		needed := st.reported != 0 || st.doubt != 0
		following := st.following
		st.following = false
		s.mu.Unlock()
		if l := st.e.known(); l != nil && l.holder == s.id {
			needed = true
		}
		s.unfollow(st, following)
		if needed {
			if err := s.store.ready(ctx); err != nil {
				failed = append(failed, err)
				continue
			}
			if err := s.release(ctx, st, 0); err != nil {
				failed = append(failed, err)
				continue
			}
			s.store.labels.clear(ctx, st.e.lease)
		}
		s.forget(st, nil)
	}
	if err := s.store.ready(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	return errors.Join(failed...)
}
