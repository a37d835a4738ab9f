package drivertest_test

import (
	"context"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/driver/drivertest"
	"github.com/gotenure/tenure/store/memory"
)

// A mutation makes a wrong driver of the right one in memory. What is nil is left as it is.
type mutation struct {
	name  string
	cases string // that must notice, separated by bars

	open         func(m *mutant, ctx context.Context, member string, ttl time.Duration) (driver.Session, error)
	get          func(m *mutant, ctx context.Context, election string) (driver.Record, error)
	list         func(m *mutant, ctx context.Context, prefix string) iter.Seq2[driver.Record, error]
	watch        func(m *mutant, ctx context.Context, election string) iter.Seq2[driver.Record, error]
	ask          func(m *mutant, ctx context.Context, election string, token uint64) error
	close        func(m *mutant) error
	keepAlive    func(s *mutantSession, ctx context.Context) (driver.Grant, error)
	acquire      func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error)
	await        func(s *mutantSession, ctx context.Context, election string) error
	wake         func(s *mutantSession, election string) <-chan struct{} // makes a Waker of the session, which it is not
	release      func(s *mutantSession, ctx context.Context, election string, token uint64) error
	closeSession func(s *mutantSession, ctx context.Context) error
	changed      func(s *mutantSession) <-chan struct{}
	deleteRecord func(c *common, election string)
	corrupt      bool // the harness can corrupt records
}

// common is what all handles of a mutant share.
type common struct {
	mutation
	place *memory.Store

	mu       sync.Mutex
	sessions map[string]*mutantSession
	tokens   map[string]uint64        // of use to a mutation
	records  map[string]driver.Record // of use to a mutation
	corrupt  map[string]bool
}

// A mutant is a handle of a wrong driver.
type mutant struct {
	*memory.Store
	*common
	quit chan struct{}
	once sync.Once
}

// A mutantSession is a session of one.
type mutantSession struct {
	driver.Session
	m      *mutant
	member string
	ttl    time.Duration

	mu   sync.Mutex
	held map[string]uint64 // of use to a mutation
	told map[string]uint64 // of use to a mutation
}

func (m mutation) harness(t *testing.T) drivertest.Harness {
	c := &common{
		mutation: m, place: memory.New(), sessions: make(map[string]*mutantSession), tokens: make(map[string]uint64),
		records: make(map[string]driver.Record), corrupt: make(map[string]bool),
	}
	h := drivertest.Harness{
		Open: func(testing.TB) driver.Store {
			return &mutant{Store: c.place.Share(), common: c, quit: make(chan struct{})}
		},
		DeleteRecord: func(t testing.TB, election string) {
			if m.deleteRecord != nil {
				m.deleteRecord(c, election)
			}
			c.place.DeleteRecord(election)
		},
		OverwriteRecord: func(t testing.TB, election, session string) { c.place.OverwriteRecord(election, session) },
		DropSession:     func(t testing.TB, session string) { c.place.DropSession(session) },
	}
	if m.corrupt {
		h.CorruptRecord = func(t testing.TB, election string) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.corrupt[election] = true
		}
	}
	t.Cleanup(func() { c.place.Close() })
	return h
}

func (m *mutant) Open(ctx context.Context, member string, ttl time.Duration) (driver.Session, error) {
	open := func(m *mutant, ctx context.Context, member string, ttl time.Duration) (driver.Session, error) {
		return m.Store.Open(ctx, member, ttl)
	}
	if m.open != nil {
		open = m.open
	}
	s, err := open(m, ctx, member, ttl)
	if err != nil {
		return nil, err
	}
	wrapped := &mutantSession{Session: s, m: m, member: member, ttl: ttl, held: make(map[string]uint64), told: make(map[string]uint64)}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sessions[s.ID()] = wrapped
	if m.wake != nil {
		return waker{wrapped}, nil
	}
	return wrapped, nil
}

type waker struct{ *mutantSession }

func (s waker) Wake(election string) <-chan struct{} { return s.m.wake(s.mutantSession, election) }

func (m *mutant) Get(ctx context.Context, election string) (driver.Record, error) {
	if m.get != nil {
		return m.get(m, ctx, election)
	}
	return m.Store.Get(ctx, election)
}

func (m *mutant) List(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	if m.list != nil {
		return m.list(m, ctx, prefix)
	}
	return m.Store.List(ctx, prefix)
}

func (m *mutant) Watch(ctx context.Context, election string) iter.Seq2[driver.Record, error] {
	if m.watch != nil {
		return m.watch(m, ctx, election)
	}
	return m.Store.Watch(ctx, election)
}

func (m *mutant) Ask(ctx context.Context, election string, token uint64) error {
	if m.ask != nil {
		return m.ask(m, ctx, election, token)
	}
	return m.Store.Ask(ctx, election, token)
}

func (m *mutant) Close() error {
	m.once.Do(func() { close(m.quit) })
	if m.close != nil {
		return m.close(m)
	}
	return m.Store.Close()
}

func (s *mutantSession) KeepAlive(ctx context.Context) (driver.Grant, error) {
	if s.m.keepAlive != nil {
		return s.m.keepAlive(s, ctx)
	}
	return s.Session.KeepAlive(ctx)
}

func (s *mutantSession) Acquire(ctx context.Context, bid driver.Bid) (driver.Record, error) {
	if s.m.acquire != nil {
		return s.m.acquire(s, ctx, bid)
	}
	return s.Session.Acquire(ctx, bid)
}

func (s *mutantSession) Await(ctx context.Context, election string) error {
	if s.m.await != nil {
		return s.m.await(s, ctx, election)
	}
	return s.Session.Await(ctx, election)
}

func (s *mutantSession) Release(ctx context.Context, election string, token uint64) error {
	if s.m.release != nil {
		return s.m.release(s, ctx, election, token)
	}
	return s.Session.Release(ctx, election, token)
}

func (s *mutantSession) Close(ctx context.Context) error {
	if s.m.closeSession != nil {
		return s.m.closeSession(s, ctx)
	}
	return s.Session.Close(ctx)
}

func (s *mutantSession) Changed() <-chan struct{} {
	if s.m.changed != nil {
		return s.m.changed(s)
	}
	return s.Session.Changed()
}
