package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
)

// An env is what a case works with. Its methods end the case when what must succeed fails, so they are called from the test's goroutine, except
// where they say otherwise.
type env struct {
	*testing.T
	h      Harness
	store  driver.Store // a handle for whoever needs no other
	info   driver.Info
	prefix string        // of all names of elections
	short  time.Duration // TTL of sessions that are to lapse
	long   time.Duration // TTL of those that are not
}

// envs makes the names of elections unique within the process.
var envs atomic.Int64

func newEnv(t *testing.T, h Harness) *env {
	if h.MaxValue == 0 {
		h.MaxValue = 64 << 10
	}
	if h.Cycles == 0 {
		h.Cycles = 1000
	}
	name := t.Name()
	name = name[strings.LastIndexByte(name, '/')+1:]
	e := &env{T: t, h: h, prefix: fmt.Sprintf("%s/%d/%s/", runID, envs.Add(1), name)}
	e.store = e.handle()
	e.info = e.store.Info()
	e.short = h.TTL
	if e.short == 0 {
		e.short = max(2*time.Second, e.info.MinTTL)
	}
	// Ten minutes are longer than any case, and not so long that rows of a run that was killed stay for days.
	e.long = max(e.short, min(10*time.Minute, e.info.MaxTTL))
	return e
}

// handle opens another handle, and closes it at the end.
func (e *env) handle() driver.Store {
	e.Helper()
	store := e.h.Open(e)
	e.Cleanup(func() {
		if err := store.Close(); err != nil {
			e.Errorf("Close of the store: %v", err)
		}
	})
	return store
}

// context returns one that outlasts everything that works.
func (e *env) context() context.Context {
	ctx, cancel := context.WithTimeout(e.Context(), patience)
	e.Cleanup(cancel)
	return ctx
}

// election returns a name that no other case or run uses.
func (e *env) election(label string) string { return e.prefix + label }

// open opens a session that does not lapse during the case, and closes it at the end.
func (e *env) open(store driver.Store, member string) driver.Session {
	e.Helper()
	return e.openFor(store, member, e.long)
}

func (e *env) openFor(store driver.Store, member string, ttl time.Duration) driver.Session {
	e.Helper()
	s, err := store.Open(e.context(), member, ttl)
	if err != nil {
		e.Fatalf("Open(%q, %v): %v", member, ttl, err)
	}
	e.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = s.Close(ctx) // the case may have closed the store
	})
	return s
}

// A mortal is a session with a short TTL that is kept alive until die is called.
type mortal struct {
	driver.Session
	e    *env
	stop func()
	mu   sync.Mutex
	sent time.Time // before the last request that renewed it
	done time.Time // after its answer: the store may count the TTL from any moment between
}

func (e *env) mortal(store driver.Store, member string) *mortal {
	e.Helper()
	m := &mortal{e: e, sent: time.Now()}
	m.Session = e.openFor(store, member, e.short)
	m.done = time.Now()
	quit, done := make(chan struct{}), make(chan struct{})
	m.stop = sync.OnceFunc(func() { close(quit); <-done })
	e.Cleanup(m.stop)
	go func() {
		defer close(done)
		tick := time.NewTicker(e.short / 4)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			sent := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			_, err := m.KeepAlive(ctx)
			cancel()
			if err != nil {
				e.Errorf("KeepAlive of %s, %v after the last: %v", m.ID(), time.Since(m.lastSent()), err)
				return
			}
			m.mu.Lock()
			m.sent, m.done = sent, time.Now()
			m.mu.Unlock()
		}
	}()
	return m
}

func (m *mortal) lastSent() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sent
}

// die stops the renewals and returns the earliest moment at which the store may forget the session. A hundredth is for clocks
// that do not run at the same rate.
func (m *mortal) die() time.Time {
	m.stop()
	return m.lastSent().Add(m.e.short - m.e.short/100)
}

// buried waits until the store has forgotten the session.
func (m *mortal) buried() {
	m.e.Helper()
	m.die()
	m.mu.Lock()
	done := m.done
	m.mu.Unlock()
	// One short TTL has to pass since the answer, and asking must not renew: only then is KeepAlive certain to find it dead.
	time.Sleep(time.Until(done.Add(m.e.short + m.e.short/10)))
	if _, err := m.KeepAlive(m.e.context()); !errors.Is(err, driver.ErrSessionLost) {
		m.e.Fatalf("KeepAlive %v after the last of a session with a TTL of %v: %v; want ErrSessionLost", time.Since(m.lastSent()), m.e.short, err)
	}
}

// acquire acquires what is vacant or the session's own.
func (e *env) acquire(s driver.Session, election, value string) driver.Record {
	e.Helper()
	r, err := s.Acquire(e.context(), driver.Bid{Election: election, Value: []byte(value), Queue: true})
	if err != nil {
		e.Fatalf("Acquire(%q) by %s: %v (holder %q)", election, s.ID(), err, r.Session)
	}
	e.checkHeld(r, s, election, value)
	return r
}

// checkHeld checks the record of an election that the session holds.
func (e *env) checkHeld(r driver.Record, s driver.Session, election, value string) {
	e.Helper()
	if r.Election != election || r.Session != s.ID() || r.Leader == "" || r.Token == 0 || string(r.Value) != value {
		e.Fatalf("record is %s; want election %q held by session %q with a token and value %.40q", show(r), election, s.ID(), value)
	}
}

// refused acquires what another session holds, and returns the record that came with the refusal.
func (e *env) refused(s driver.Session, election string, queue bool) driver.Record {
	e.Helper()
	r, err := s.Acquire(e.context(), driver.Bid{Election: election, Value: []byte("of " + s.ID()), Queue: queue})
	if !errors.Is(err, driver.ErrHeld) {
		e.Fatalf("Acquire(%q) by %s: %s, %v; want ErrHeld", election, s.ID(), show(r), err)
	}
	if !r.Held() || r.Session == s.ID() || r.Election != election {
		e.Fatalf("Acquire(%q) by %s: ErrHeld with %s; want the record of another holder", election, s.ID(), show(r))
	}
	return r
}

func (e *env) release(s driver.Session, election string, token uint64) {
	e.Helper()
	if err := s.Release(e.context(), election, token); err != nil {
		e.Fatalf("Release(%q, %d) by %s: %v", election, token, s.ID(), err)
	}
}

func (e *env) keepAlive(s driver.Session) driver.Grant {
	e.Helper()
	grant, err := s.KeepAlive(e.context())
	if err != nil {
		e.Fatalf("KeepAlive of %s: %v", s.ID(), err)
	}
	if grant.TTL <= 0 {
		e.Fatalf("KeepAlive of %s granted %v", s.ID(), grant.TTL)
	}
	return grant
}

func (e *env) get(election string) driver.Record {
	e.Helper()
	r, err := e.store.Get(e.context(), election)
	if err != nil {
		e.Fatalf("Get(%q): %v", election, err)
	}
	if r.Election != election {
		e.Fatalf("Get(%q) returned the record of %q", election, r.Election)
	}
	return r
}

// vacant checks that nobody holds the election.
func (e *env) vacant(election string) driver.Record {
	e.Helper()
	r := e.get(election)
	if r.Held() || r.Leader != "" {
		e.Fatalf("%s; want it vacant", show(r))
	}
	return r
}

// holds checks that the session holds the election.
func (e *env) holds(s driver.Session, election string) driver.Record {
	e.Helper()
	r := e.get(election)
	if r.Session != s.ID() {
		e.Fatalf("%s; want it held by %s", show(r), s.ID())
	}
	return r
}

// await waits until Acquire is worth trying.
func (e *env) await(s driver.Session, election string) {
	e.Helper()
	if err := s.Await(e.context(), election); err != nil {
		e.Fatalf("Await(%q) by %s: %v", election, s.ID(), err)
	}
}

// wins acquires, and waits as long as another holds the election.
func (e *env) wins(s driver.Session, election, value string) driver.Record {
	e.Helper()
	r, err := campaign(e.context(), s, driver.Bid{Election: election, Value: []byte(value), Queue: true})
	if err != nil {
		e.Fatalf("%s waited %v for %q: %v; the record is %s", s.ID(), patience, election, err, show(e.get(election)))
	}
	e.checkHeld(r, s, election, value)
	return r
}

// campaign may be called from any goroutine.
func campaign(ctx context.Context, s driver.Session, bid driver.Bid) (driver.Record, error) {
	for {
		r, err := s.Acquire(ctx, bid)
		if !errors.Is(err, driver.ErrHeld) {
			return r, err
		}
		if err := wait(ctx, s, bid.Election); err != nil {
			return r, err
		}
	}
}

// wait waits as the core does: by Wake where there is one.
func wait(ctx context.Context, s driver.Session, election string) error {
	if w, ok := s.(driver.Waker); ok {
		if wake := w.Wake(election); wake != nil {
			select {
			case <-wake:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return s.Await(ctx, election)
}

// eventually waits until f returns "", which else says what is missing.
func (e *env) eventually(f func() string) {
	e.Helper()
	for deadline := time.Now().Add(patience); ; {
		missing := f()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			e.Fatalf("after %v: %s", patience, missing)
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
}

// lost checks that all that a session can do says that it is lost.
func (e *env) lost(s driver.Session, election string) {
	e.Helper()
	if _, err := s.KeepAlive(e.context()); !errors.Is(err, driver.ErrSessionLost) {
		e.Errorf("KeepAlive of the dead session %s: %v; want ErrSessionLost", s.ID(), err)
	}
	if r, err := s.Acquire(e.context(), driver.Bid{Election: election, Queue: true}); !errors.Is(err, driver.ErrSessionLost) {
		e.Errorf("Acquire by the dead session %s: %s, %v; want ErrSessionLost", s.ID(), show(r), err)
	}
	if err := s.Await(e.context(), election); !errors.Is(err, driver.ErrSessionLost) {
		e.Errorf("Await by the dead session %s: %v; want ErrSessionLost", s.ID(), err)
	}
}

// grows checks that a later term has a greater token.
func (e *env) grows(earlier, later driver.Record, what string) {
	e.Helper()
	if later.Token <= earlier.Token {
		e.Errorf("token %d after %d, across %s; want a greater one", later.Token, earlier.Token, what)
	}
}
