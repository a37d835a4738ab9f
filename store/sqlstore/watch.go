package sqlstore

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/gotenure/tenure/driver"
)

const (
	// watchPoll backs notifications, which are hints: one may be lost with its connection.
	watchPoll = 5 * time.Second

	// watchLimit is for one look: a watch must not be silent much longer when its connection is dead.
	watchLimit = 8 * time.Second
)

// A watch is one iteration of Watch.
type watch struct {
	wake chan struct{} // buffer of one
}

// Watch implements driver.Store.
func (s *Store) Watch(ctx context.Context, election string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		w := s.addWatch(election)
		defer s.removeWatch(election, w)
		s.attend(ctx)
		timer := time.NewTimer(time.Hour)
		defer timer.Stop()
		var last driver.Record
		for first := true; ; first = false {
			look, cancel := context.WithTimeout(ctx, watchLimit)
			st, err := s.get(look, election)
			cancel()
			if err != nil {
				yield(driver.Record{}, err)
				return
			}
			if first || !same(st.Record, last) {
				last = st.Record
				if !yield(st.Record, nil) {
					return
				}
			}
			next := watchPoll*3/4 + rand.N(watchPoll/2)
			if st.Held() {
				next = min(next, st.remaining+time.Millisecond)
			}
			timer.Reset(next)
			select {
			case <-ctx.Done():
				yield(driver.Record{}, fmt.Errorf("%s: watch election %q: %w", s.d.Name, election, ctx.Err()))
				return
			case <-s.ctx.Done():
				yield(driver.Record{}, fmt.Errorf("%s: watch election %q: %w", s.d.Name, election, errClosed))
				return
			case <-w.wake:
			case <-timer.C:
			}
		}
	}
}

// same reports whether two records are one state.
func same(a, b driver.Record) bool {
	return a.Session == b.Session && a.Token == b.Token && a.Leader == b.Leader && bytes.Equal(a.Value, b.Value)
}

func (s *Store) addWatch(election string) *watch {
	w := &watch{wake: make(chan struct{}, 1)}
	s.mu.Lock()
	if s.watches[election] == nil {
		s.watches[election] = make(map[*watch]struct{})
	}
	s.watches[election][w] = struct{}{}
	s.mu.Unlock()
	signal(s.stir)
	return w
}

func (s *Store) removeWatch(election string, w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watches[election], w)
	if len(s.watches[election]) == 0 {
		delete(s.watches, election)
	}
}

// attend makes sure that notifications of all elections are heard before what it precedes looks at one. When they cannot be, the store is polling or about to.
func (s *Store) attend(ctx context.Context) {
	if s.opts.Attend == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, watchLimit)
	defer cancel()
	if err := s.opts.Attend(ctx); err != nil {
		s.log.Debug("tenure: cannot listen", "store", s.d.Name, "error", err)
	}
}

// Heard tells the store what a notification said. It does not block.
func (s *Store) Heard(e Event) {
	s.mu.Lock()
	addressed := s.sessions[e.Session]
	s.mu.Unlock()
	if addressed != nil {
		addressed.heard(e)
		runtime.Gosched() // whom it wakes goes on at once; the others are many, and in no hurry
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.sessions {
		if n != addressed {
			n.heard(e)
		}
	}
	if e.Kind != Asked {
		for w := range s.watches[e.Election] {
			signal(w.wake)
		}
	}
}

// Pushing tells the store whether notifications arrive at present. After each true everything is looked at once, since notifications may have been
// missed; after false the store polls. A store whose engine never calls it polls. It does not block.
func (s *Store) Pushing(on bool) {
	s.mu.Lock()
	s.pushing = on
	s.mu.Unlock()
	signal(s.stir)
	if on {
		s.Reconsider()
		s.spawn(s.lookAll)
	}
}

// Reconsider makes the callers of all sessions' KeepAlive renew now: something that the sessions depend on has changed.
func (s *Store) Reconsider() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.sessions {
		signal(n.changed)
	}
}

// lookAll asks the store, once, what it would have pushed.
func (s *Store) lookAll() {
	s.mu.Lock()
	sessions := make([]*session, 0, len(s.sessions))
	for _, n := range s.sessions {
		sessions = append(sessions, n)
	}
	for _, watches := range s.watches {
		for w := range watches {
			signal(w.wake)
		}
	}
	s.mu.Unlock()
	for _, n := range sessions {
		if err := n.withLimit(n.look); err != nil {
			// What it would have found the next KeepAlive finds.
			s.log.Debug("tenure: looking for news failed", "store", s.d.Name, "session", n.id, "error", err)
		}
	}
}

// poll looks for changes while something waits and nothing is pushed.
func (s *Store) poll() {
	changer, _ := s.engine.(Changer)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var version int64
	known := false
	for {
		if !s.polls() {
			known = false
			select {
			case <-s.ctx.Done():
				return
			case <-s.stir:
			}
			continue
		}
		pause := s.d.Poll
		if changer == nil {
			pause = pause*3/4 + rand.N(pause/2)
		}
		timer.Reset(pause)
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		}
		if changer != nil {
			ctx, cancel := context.WithTimeout(s.ctx, watchLimit)
			v, err := changer.Version(ctx)
			cancel()
			if err == nil && known && v == version {
				continue
			}
			version, known = v, err == nil
		}
		s.lookAll()
	}
}

// polls reports whether there is something to poll for.
func (s *Store) polls() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pushing {
		return false
	}
	if len(s.watches) > 0 {
		return true
	}
	for _, n := range s.sessions {
		n.mu.Lock()
		waiting := len(n.waits) > 0
		n.mu.Unlock()
		if waiting {
			return true
		}
	}
	return false
}
