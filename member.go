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

// maxRequests is how many requests to acquire or release a member has under way at once: enough to keep a store busy, few enough
// that with ten thousand elections none waits in the store's queue for longer than its own time limit.
const maxRequests = 32

// A Member takes part in elections with one session, which one heartbeat keeps alive however many elections it holds. (Stores that
// cannot share a session among elections get one for each; driver.Info says so.) The price is shared fate: when the session is lost, all
// its terms end. Where that is too much, join more than one member. All methods may be called concurrently.
type Member struct {
	store  driver.Store
	info   driver.Info
	cfg    Config
	events events
	slots  chan struct{} // a semaphore

	ctx    context.Context // cancelled with ErrLeft when the member leaves
	cancel context.CancelCauseFunc

	mu        sync.Mutex
	left      bool
	stands    map[string]*stand
	cooling   map[string]time.Time // when the member may stand again in an election that it lost
	sessions  map[*session]struct{}
	shared    *session      // where the store shares sessions: the current one
	opening   *opening      // under way
	idle      chan struct{} // closed and replaced when stands or sessions shrink
	closeErr  error         // of the last session that could not be closed
	served    atomic.Bool   // a session was opened: what is wrong with the next was not so from the start, and may pass
	stillborn int           // sessions that were lost before their first renewal, since the last that was renewed
}

// An opening is the one attempt, repeated until it succeeds, to open the shared session.
type opening struct {
	done   chan struct{} // closed when there is a session, or err is final
	failed chan struct{} // closed when an attempt has failed
	err    error         // the last failure; guarded by Member.mu
}

// Join makes a member that has a session at the store. It makes one attempt, so that a wrong address or a missing permission is told at once; what fails
// afterwards is retried for ever, a permission that was withdrawn included. An error that wraps driver.ErrInvalid names the field that is wrong. The store must stay open until
// the member has left.
func Join(ctx context.Context, store driver.Store, cfg Config) (*Member, error) {
	info := store.Info()
	cfg, err := cfg.withDefaults(info)
	if err != nil {
		return nil, err
	}
	m := &Member{
		store: store, info: info, cfg: cfg,
		events:   events{logger: cfg.Logger, observer: cfg.Observer},
		slots:    make(chan struct{}, maxRequests),
		stands:   map[string]*stand{},
		cooling:  map[string]time.Time{},
		sessions: map[*session]struct{}{},
		idle:     make(chan struct{}),
	}
	m.ctx, m.cancel = context.WithCancelCause(context.Background())
	if info.SharedSessions {
		if m.shared, err = m.open(ctx); err != nil {
			m.cancel(ErrLeft)
			return nil, err
		}
	}
	return m, nil
}

// ID returns the member's ID.
func (m *Member) ID() string { return m.cfg.ID }

// live returns a live session for a stand, opening one if need be: with wait, until the context ends; without, in one attempt.
func (m *Member) live(ctx context.Context, st *stand, wait bool) (*session, error) {
	if !m.info.SharedSessions {
		return m.openOwn(ctx, st, wait)
	}
	for {
		m.mu.Lock()
		if m.left {
			m.mu.Unlock()
			return nil, ErrLeft
		}
		if s := m.shared; s != nil && s.ctx.Err() == nil {
			m.mu.Unlock()
			return s, nil
		}
		o := m.opening
		if o == nil {
			o = &opening{done: make(chan struct{}), failed: make(chan struct{})}
			m.opening = o
			go m.reopen(o)
		}
		m.mu.Unlock()
		failed := o.failed
		if wait {
			failed = nil
		}
		select {
		case <-o.done:
		case <-failed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		m.mu.Lock()
		err := o.err
		m.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
}

// openOwn opens a session that is only for this stand.
func (m *Member) openOwn(ctx context.Context, st *stand, wait bool) (*session, error) {
	open := m.open
	if wait {
		open = func(ctx context.Context) (*session, error) { return m.openUntil(ctx, func(error) {}) }
	}
	s, err := open(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	st.own = s
	m.mu.Unlock()
	return s, nil
}

// openUntil opens a session, trying until it succeeds, the context ends, or an error is final. It tells failed of every other error.
func (m *Member) openUntil(ctx context.Context, failed func(error)) (*session, error) {
	// A store that opens sessions and then loses them must not be asked for them without end.
	m.mu.Lock()
	stillborn := m.stillborn
	m.mu.Unlock()
	if stillborn > 1 {
		if err := sleep(ctx, m.backoff(stillborn-1)); err != nil {
			return nil, err
		}
	}
	for failures := 1; ; failures++ {
		s, err := m.open(ctx)
		if err == nil || errors.Is(err, driver.ErrInvalid) && !m.served.Load() || errors.Is(err, ErrLeft) || ctx.Err() != nil {
			return s, err
		}
		failed(err)
		m.emit(SessionFailed{Meta: Meta{At: time.Now(), Member: m.cfg.ID}, Err: err})
		if err := sleep(ctx, m.backoff(failures)); err != nil {
			return nil, err
		}
	}
}

// reopen opens the shared session.
func (m *Member) reopen(o *opening) {
	s, err := m.openUntil(m.ctx, func(err error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if o.err == nil {
			close(o.failed)
		}
		o.err = err
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	o.err = err
	if err == nil {
		m.shared = s
	}
	m.opening = nil
	close(o.done)
}

// settled notes that a session was renewed, or lost before it ever was. It may be called with session.mu held.
func (m *Member) settled(renewed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if renewed {
		m.stillborn = 0
	} else {
		m.stillborn++
	}
}

// began notes the term of a stand.
func (m *Member) began(st *stand, t *Term) {
	m.mu.Lock()
	defer m.mu.Unlock()
	st.term = t
}

// Leave ends everything: it cancels all terms, waits for the work that Lead runs, releases all elections, and closes the session.
// Terms that came from Campaign are released at once: stop their work before. Leave returns nil when the store holds nothing of the member any more.
//
// Work that does not return within StopTimeout keeps its lease until that lapses by itself, which takes a TTL at the most; Leave waits as long. It
// returns at the latest when the context ends. Whatever it returns, the member is over.
func (m *Member) Leave(ctx context.Context) error {
	m.mu.Lock()
	m.left = true
	var terms []*Term
	for _, st := range m.stands {
		if st.term != nil {
			terms = append(terms, st.term)
		}
	}
	m.mu.Unlock()
	m.cancel(ErrLeft)
	for _, t := range terms {
		t.session.end(t, ErrLeft)
		if !t.managed {
			t.finish()
		}
	}
	// The heartbeats go on while work stops and elections are released, but not for work that hangs.
	stop, cancel := context.WithTimeout(ctx, m.cfg.StopTimeout)
	overrun := m.wait(stop, func() string { return m.standing() })
	cancel()
	m.mu.Lock()
	sessions := make([]*session, 0, len(m.sessions))
	for s := range m.sessions {
		sessions = append(sessions, s)
	}
	m.mu.Unlock()
	for _, s := range sessions {
		s.finish(ErrLeft, func(*Term) error { return ErrLeft })
	}
	open := m.wait(ctx, func() string {
		if len(m.sessions) > 0 {
			return "its session"
		}
		return ""
	})
	m.events.flush(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case overrun != "" && m.standing() != "":
		return fmt.Errorf("leave: work of %s has not returned; what member %s holds lapses within %v", overrun, m.cfg.ID, m.cfg.TTL)
	case open != "":
		return fmt.Errorf("leave: session of member %s could not be closed in time (%w); it lapses within %v", m.cfg.ID, context.Cause(ctx), m.cfg.TTL)
	case m.closeErr != nil:
		return fmt.Errorf("leave: session of member %s could not be closed; it lapses within %v: %w", m.cfg.ID, m.cfg.TTL, m.closeErr)
	}
	return nil
}

// standing names one of the elections in which the member still stands; m.mu is held.
func (m *Member) standing() string {
	for election := range m.stands {
		return election
	}
	return ""
}

// wait waits until what returns the empty string, and otherwise returns what it said last. what is called with m.mu held.
func (m *Member) wait(ctx context.Context, what func() string) string {
	for {
		m.mu.Lock()
		left, idle := what(), m.idle
		m.mu.Unlock()
		if left == "" {
			return ""
		}
		select {
		case <-idle:
		case <-ctx.Done():
			return left
		}
	}
}

// shrunk wakes wait; m.mu is held.
func (m *Member) shrunk() {
	close(m.idle)
	m.idle = make(chan struct{})
}

// forget drops a session that has been closed.
func (m *Member) forget(s *session, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sessions, s)
	if errors.Is(context.Cause(s.ctx), ErrLeft) {
		m.closeErr = err
	}
	m.shrunk()
}

// cool makes the member wait before it stands again in an election that it lost.
func (m *Member) cool(election string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cooling[election] = time.Now().Add(m.cfg.StablePeriod)
}

// cooled waits for what cool ordered.
func (m *Member) cooled(ctx context.Context, election string) error {
	m.mu.Lock()
	until, ok := m.cooling[election]
	delete(m.cooling, election)
	m.mu.Unlock()
	if !ok {
		return nil
	}
	return sleep(ctx, time.Until(until))
}

func (m *Member) emit(e Event) { m.events.emit(e) }

// backoff returns how long to wait after so many failures: exponential, with full jitter (see "Exponential Backoff And Jitter", AWS
// Architecture Blog, 2015), between RetryMin and RetryMax.
func (m *Member) backoff(failures int) time.Duration {
	ceiling := m.cfg.RetryMax
	if shift := failures - 1; shift < 30 && m.cfg.RetryMin<<shift < ceiling {
		ceiling = m.cfg.RetryMin << shift
	}
	return rand.N(ceiling + 1)
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
