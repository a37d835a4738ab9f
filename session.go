package tenure

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotenure/tenure/driver"
)

// A session is one session at the store with its heartbeat, and the terms that depend on it. It ends once, and with it all its terms.
type session struct {
	m        *Member
	ds       driver.Session
	deadline atomic.Pointer[deadline] // when its terms end unless renewed
	ctx      context.Context          // cancelled when the session has ended; its cause is why
	cancel   context.CancelCauseFunc
	retired  chan struct{} // closed when it is closed at the store, or given up

	mu          sync.Mutex
	terms       map[string]*Term   // live ones, by election
	outstanding map[*Term]struct{} // those whose work is not known to have returned
	changed     chan struct{}      // closed and replaced when outstanding shrinks
	lapsesAt    time.Time          // when the store forgets the session by itself
	failures    int                // renewals that failed since the last that succeeded
	failure     error              // the last of them
	renewals    int                // sent so far
	renewedOnce bool               // one of them has succeeded
	namesake    string             // the last one reported
}

// open makes one attempt to open a session.
func (m *Member) open(ctx context.Context) (*session, error) {
	sent := moments()
	ds, err := call(ctx, m.cfg.RenewDeadline, func(ctx context.Context) (driver.Session, error) {
		return m.store.Open(ctx, m.cfg.ID, m.cfg.TTL)
	}, func(ds driver.Session) { _ = closeSession(ds, m.cfg.RenewInterval) })
	if err != nil {
		return nil, fmt.Errorf("open a session for member %s in %s: %w", m.cfg.ID, m.info.Name, err)
	}
	s := &session{m: m, ds: ds, terms: map[string]*Term{}, outstanding: map[*Term]struct{}{}, changed: make(chan struct{}), retired: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.extend(sent, m.cfg.TTL)

	m.mu.Lock()
	if m.left {
		m.mu.Unlock()
		_ = closeSession(ds, m.cfg.RenewInterval) // else it lapses
		return nil, ErrLeft
	}
	m.sessions[s] = struct{}{}
	m.mu.Unlock()
	m.served.Store(true)
	m.emit(SessionOpened{Meta: s.meta()})
	go func() {
		s.heartbeat()
		s.retire()
	}()
	return s, nil
}

// heartbeat renews the session until it ends. It never waits for the store without watching the deadline: a renewal that hangs, even one that
// ignores its context, ends the session in time.
func (s *session) heartbeat() {
	cfg := &s.m.cfg
	renew := time.NewTimer(spread(cfg.RenewInterval))
	defer renew.Stop()
	// Timers stand still while the machine sleeps: a look at least once a second notices a deadline that passed meanwhile.
	look := time.NewTicker(min(time.Second, cfg.RenewInterval))
	defer look.Stop()
	lapse := time.NewTimer(time.Until(s.deadline.Load().at))
	defer lapse.Stop()

	type answer struct {
		sent  moment
		grant driver.Grant
		err   error
	}
	var renewing chan answer // nil: no renewal is under way
	changed := s.ds.Changed()
	for {
		start := false
		select {
		case <-s.ctx.Done():
			return
		case <-look.C:
		case <-lapse.C:
		case <-renew.C:
			start = true
		case <-changed:
			start = true
		case a := <-renewing:
			renewing, changed = nil, s.ds.Changed()
			next := s.renewed(a.sent, a.grant, a.err)
			renew.Reset(next)
			lapse.Reset(time.Until(s.deadline.Load().at))
		}
		if s.deadline.Load().passed(time.Now()) {
			s.lapse()
			return
		}
		if start && renewing == nil {
			ch := make(chan answer, 1)
			renewing, changed = ch, nil // a change during a renewal is seen by the next
			go func() {
				s.mu.Lock()
				s.renewals++
				s.mu.Unlock()
				sent := moments()
				ctx, cancel := context.WithTimeout(s.ctx, min(cfg.RenewInterval, time.Until(s.deadline.Load().at)))
				defer cancel()
				grant, err := s.ds.KeepAlive(ctx)
				ch <- answer{sent, grant, err}
			}()
		}
	}
}

// renewed digests the answer to a renewal and returns when to send the next.
func (s *session) renewed(sent moment, grant driver.Grant, err error) time.Duration {
	m := s.m
	switch {
	case errors.Is(err, driver.ErrSessionLost):
		s.lose(fmt.Errorf("the store says: %w", err))
		return m.cfg.RenewInterval
	case err != nil:
		s.mu.Lock()
		s.failures++
		s.failure = err
		failures := s.failures
		s.mu.Unlock()
		m.emit(RenewFailed{Meta: s.meta(), Err: err, Failures: failures, Deadline: s.deadline.Load().at})
		return min(m.backoff(failures), m.cfg.RenewInterval)
	}
	s.mu.Lock()
	s.failures, s.failure, s.renewedOnce = 0, nil, true
	s.mu.Unlock()
	m.settled(true)
	if !s.extend(sent, grant.TTL) {
		s.lose(fmt.Errorf("the store granted a TTL of %v, which leaves nothing after the %v for clock drift and for the work to stop", grant.TTL, m.cfg.Drift+m.cfg.StopTimeout))
		return m.cfg.RenewInterval
	}
	m.emit(Renewed{Meta: s.meta(), Took: time.Since(sent.now), Deadline: s.deadline.Load().at})
	s.reconcile(grant)
	return spread(m.cfg.RenewInterval)
}

// extend counts a grant from before its request was sent.
func (s *session) extend(sent moment, ttl time.Duration) bool {
	lease := min(s.m.cfg.RenewDeadline, ttl-s.m.cfg.Drift-s.m.cfg.StopTimeout)
	s.deadline.Store(sent.add(lease))
	s.mu.Lock()
	s.lapsesAt = sent.now.Add(ttl + s.m.cfg.Drift)
	s.mu.Unlock()
	return lease > 0
}

// reconcile makes this side agree with what the store says that the session holds.
func (s *session) reconcile(grant driver.Grant) {
	m := s.m
	s.mu.Lock()
	if grant.Holds != nil {
		for election, t := range s.terms {
			if grant.Holds[election] != t.token && t.renewals < s.renewals {
				s.endLocked(t, s.lost(t, errOverwrote))
				delete(s.outstanding, t) // closing the session can free nothing of it
			}
		}
	}
	for election, token := range grant.Asked {
		if t := s.terms[election]; t != nil && t.token == token {
			s.endLocked(t, fmt.Errorf("%w: somebody asked for it", ErrResigned))
		}
	}
	s.mu.Unlock()
	s.clash(grant.Namesake)
	for election, token := range grant.Holds {
		m.releaseStray(s, election, token)
	}
}

// acquire makes one bounded attempt.
func (s *session) acquire(ctx context.Context, bid driver.Bid) (driver.Record, error) {
	sent := moments()
	rec, err := bounded(ctx, s.m, min(s.m.cfg.RenewInterval, time.Until(s.deadline.Load().at)), func(ctx context.Context) (driver.Record, error) {
		sent = moments()
		return s.ds.Acquire(ctx, bid)
	})
	if err == nil && !s.m.info.SharedSessions {
		s.extend(sent, s.m.cfg.TTL)
	}
	if errors.Is(err, driver.ErrSessionLost) {
		s.lose(fmt.Errorf("the store says: %w", err))
	}
	return rec, err
}

// clash reports another live session of the same member ID, once.
func (s *session) clash(other string) {
	s.mu.Lock()
	told := other == "" || s.namesake == other
	s.namesake = other
	s.mu.Unlock()
	if !told {
		s.m.emit(NamesakeSeen{Meta: s.meta(), Other: other})
	}
}

// adopt makes a term of an election that the store has granted, unless the session has ended meanwhile.
func (s *session) adopt(ctx context.Context, st *stand, token uint64, c candidacy) (*Term, error) {
	t := &Term{stand: st, session: s, token: token, started: time.Now(), managed: c.managed, released: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	if s.deadline.Load().passed(t.started) {
		s.lapse()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, context.Cause(s.ctx)
	}
	t.renewals = s.renewals
	s.terms[st.election] = t
	s.outstanding[t] = struct{}{}
	s.m.began(st, t)
	s.m.emit(TermStarted{Meta: t.meta(), Deadline: s.deadline.Load().at, Waited: t.started.Sub(c.began)})
	return t, nil
}

// lapse ends a session whose deadline has passed.
func (s *session) lapse() {
	s.mu.Lock()
	reason := s.failure
	s.mu.Unlock()
	if reason == nil {
		reason = errLapsed
	}
	s.lose(reason)
}

// lose ends the session against its will.
func (s *session) lose(reason error) {
	s.mu.Lock()
	if s.ctx.Err() == nil && !s.renewedOnce {
		s.m.settled(false)
	}
	s.mu.Unlock()
	s.finish(reason, func(t *Term) error { return s.lost(t, reason) })
}

// finish ends the session and its terms, once.
func (s *session) finish(reason error, why func(*Term) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	for _, t := range s.terms {
		s.endLocked(t, why(t))
	}
	s.cancel(reason)
	s.m.emit(SessionEnded{Meta: s.meta(), Reason: reason})
}

func (s *session) lost(t *Term, reason error) error {
	failures := s.failures
	if reason != s.failure { //nolint:errorlint // the very value, not one like it
		failures = 0
	}
	return &LostError{Election: t.Election(), Token: t.token, Held: time.Since(t.started), Failures: failures, Reason: reason}
}

// end ends a term, unless it has ended.
func (s *session) end(t *Term, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(t, reason)
}

func (s *session) endLocked(t *Term, reason error) {
	if !t.endedAt.IsZero() {
		return
	}
	t.endedAt = time.Now()
	delete(s.terms, t.Election())
	t.cancel(reason)
	t.ended.Store(true)
	lost := errors.Is(reason, ErrLost)
	s.m.emit(TermEnded{Meta: t.meta(), Held: t.endedAt.Sub(t.started), Reason: reason})
	if lost {
		s.m.cool(t.Election())
	}
	if t.managed {
		stop := s.m.cfg.StopTimeout
		t.overrun = time.AfterFunc(stop, func() { s.m.emit(Overrun{Meta: t.meta(), For: stop}) })
	} else if lost {
		s.m.exit(t.stand) // the caller may stand again without ado
	}
}

// disown ends a term whose record turned out to be another's, and releases what was won by accident.
func (s *session) disown(t *Term, rec driver.Record, won bool) {
	s.mu.Lock()
	s.endLocked(t, s.lost(t, errOverwrote))
	s.mu.Unlock()
	if won {
		s.m.releaseStray(s, rec.Election, rec.Token)
	}
}

// retire closes the session at the store, but not before its work has returned, or the store has forgotten it anyway: closing frees what it holds.
func (s *session) retire() {
	s.mu.Lock()
	lapsed := time.NewTimer(time.Until(s.lapsesAt))
	s.mu.Unlock()
	defer lapsed.Stop()
	for waiting := !errors.Is(context.Cause(s.ctx), driver.ErrSessionLost); waiting; {
		s.mu.Lock()
		left, changed := len(s.outstanding), s.changed
		s.mu.Unlock()
		if left == 0 {
			break
		}
		select {
		case <-changed:
		case <-lapsed.C:
			waiting = false
		}
	}
	err := closeSession(s.ds, s.m.cfg.RenewInterval)
	close(s.retired)
	s.m.forget(s, err)
}

// closeSession closes a session at the store within limit, even when the driver ignores its context.
func closeSession(ds driver.Session, limit time.Duration) error {
	_, err := call(context.Background(), limit, func(ctx context.Context) (struct{}, error) { return struct{}{}, ds.Close(ctx) }, nil)
	return err
}

func (s *session) meta() Meta { return s.metaOf("", 0) }

func (s *session) metaOf(election string, token uint64) Meta {
	return Meta{At: time.Now(), Member: s.m.cfg.ID, Session: s.ds.ID(), Election: election, Token: token}
}

// spread shortens an interval by up to a tenth, so that members that started together do not renew together.
func spread(d time.Duration) time.Duration { return d - rand.N(d/10+1) }

// call runs f for the limit at most, 0 for none, and returns when it does or when the context ends, whichever comes first: a driver may fail to heed its
// context. A result that comes too late is given to drop, unless that is nil.
//
// The context of f ends a little before the limit and before ctx, if that has a deadline: a driver that waits for something then has the time to say for what. There is
// one timer for both: on an idle machine each new one that is the next to fire wakes a thread, and the calls of a handover wait for that.
func call[T any](ctx context.Context, limit time.Duration, f func(context.Context) (T, error), drop func(T)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	inner, cancel, slack := ctx, func() {}, time.Duration(0)
	if end, ok := ctx.Deadline(); ok && (limit == 0 || time.Until(end) < limit) {
		limit = max(time.Until(end), 1)
	}
	if limit != 0 {
		slack = min(limit/20, 200*time.Millisecond)
		inner, cancel = context.WithTimeout(ctx, limit-slack)
	}
	ch := make(chan answer, 1)
	go func() {
		defer cancel()
		if limit != 0 {
			reserve() // for a request; ten thousand waits have no limit
		}
		v, err := f(inner)
		ch <- answer{v, err}
	}()
	err := context.DeadlineExceeded
	select {
	case a := <-ch:
		return a.v, a.err
	case <-inner.Done():
	}
	grace := time.NewTimer(slack)
	defer grace.Stop()
	select {
	case a := <-ch:
		return a.v, a.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-grace.C:
	}
	select {
	case a := <-ch:
		return a.v, a.err
	default:
	}
	if drop != nil {
		go func() {
			if a := <-ch; a.err == nil {
				drop(a.v)
			}
		}()
	}
	var zero T
	return zero, err
}

// reserve makes the goroutine's stack as large as clients of stores need it. It would get there by being copied to one of twice the size time and again, which on
// a machine that has been idle is 5 % of a whole handover on etcd.
//
//go:noinline
func reserve() {
	var frame [15 << 10]byte
	touch(&frame)
}

//go:noinline
func touch(*[15 << 10]byte) {}

// bounded is call with the member's limit on requests under way.
func bounded[T any](ctx context.Context, m *Member, limit time.Duration, f func(context.Context) (T, error)) (T, error) {
	select {
	case m.slots <- struct{}{}:
	case <-ctx.Done():
		var zero T
		return zero, context.Cause(ctx)
	}
	defer func() { <-m.slots }()
	return call(ctx, max(limit, 1), f, nil)
}

// joined returns a context that ends with either; its cause is that of the first.
func joined(ctx, other context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
}

func isHeld(err error) bool { return errors.Is(err, driver.ErrHeld) }
