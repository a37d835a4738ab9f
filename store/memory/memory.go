// Package memory is a store in the memory of one process: members that share it elect among themselves.
//
// It is the reference for the contract of package driver and what tests of an application use instead of a server. It has everything
// that the contract knows: shared sessions, a queue with direct transfer, push, requests to resign. Its only clock is package time, it
// starts no goroutine, and its mutex is never held while it waits, so it runs under virtual time in a testing/synctest bubble.
//
// Members of different processes do not see each other's elections; who needs that uses another store.
package memory

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/gotenure/tenure/driver"
)

// Bounds of a session's TTL. They only catch mistakes of units: a timer can do less and more.
const (
	minTTL = time.Millisecond
	maxTTL = 24 * time.Hour
)

// maxValue is the greatest length of a value in bytes: enough for a description of a member, too little for abuse as a database.
const maxValue = 1 << 20

var errClosed = errors.New("memory: store is closed")

// A Store is one handle onto a place where elections are recorded. Its methods may be called concurrently.
type Store struct {
	state *state
	once  sync.Once
	done  chan struct{} // closed by Close
}

var (
	_ driver.Store = (*Store)(nil)
	_ driver.Asker = (*Store)(nil)
)

// New makes an empty place and returns the first handle onto it.
func New() *Store {
	return &Store{
		state: &state{
			sessions:  make(map[string]*session),
			members:   make(map[string]map[*session]struct{}),
			elections: make(map[string]*election),
			watches:   make(map[string]map[chan struct{}]struct{}),
		},
		done: make(chan struct{}),
	}
}

// Share returns another handle onto the same place, as another process would open one. Each handle is closed on its own.
func (s *Store) Share() *Store {
	return &Store{state: s.state, done: make(chan struct{})}
}

// Info tells what the store can do.
func (s *Store) Info() driver.Info {
	return driver.Info{
		Name:           "memory",
		MinTTL:         minTTL,
		MaxTTL:         maxTTL,
		Push:           true,
		Queue:          true,
		SharedSessions: true,
		Token:          "one counter for all elections of the place",
		Clock:          "this process's monotonic clock",
		Caveats:        []string{"Elections exist as long as the process does, and only members within it see them."},
	}
}

// Close ends this handle: whatever still waits through it fails soon, its sessions are left to lapse. It never fails.
func (s *Store) Close() error {
	s.once.Do(func() { close(s.done) })
	return nil
}

// ready returns an error when the context or the handle has ended.
func (s *Store) ready(ctx context.Context) error {
	select {
	case <-s.done:
		return errClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	return nil
}

// Open starts a session of the member.
func (s *Store) Open(ctx context.Context, member string, ttl time.Duration) (driver.Session, error) {
	if err := driver.CheckName("member", member); err != nil {
		return nil, err
	}
	if ttl < minTTL || ttl > maxTTL {
		return nil, fmt.Errorf("%w: TTL %v: choose one from %v to %v", driver.ErrInvalid, ttl, minTTL, maxTTL)
	}
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	return s.state.open(s, member, ttl), nil
}

// Get returns the election's record.
func (s *Store) Get(ctx context.Context, name string) (driver.Record, error) {
	if err := driver.CheckName("election", name); err != nil {
		return driver.Record{}, err
	}
	if err := s.ready(ctx); err != nil {
		return driver.Record{}, err
	}
	return s.state.get(name), nil
}

// List yields the records whose names start with prefix, as they all were at one moment.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		if err := s.ready(ctx); err != nil {
			yield(driver.Record{}, err)
			return
		}
		for _, record := range s.state.list(prefix) {
			if err := s.ready(ctx); err != nil {
				yield(driver.Record{}, err)
				return
			}
			if !yield(record, nil) {
				return
			}
		}
	}
}

// Watch yields the election's record and then each later state.
func (s *Store) Watch(ctx context.Context, name string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		if err := driver.CheckName("election", name); err != nil {
			yield(driver.Record{}, err)
			return
		}
		changed := s.state.watch(name)
		defer s.state.unwatch(name, changed)
		var last driver.Record
		for first := true; ; first = false {
			if err := s.ready(ctx); err != nil {
				yield(driver.Record{}, err)
				return
			}
			if record := s.state.get(name); first || !sameState(record, last) {
				last = record
				if !yield(record, nil) {
					return
				}
			}
			select {
			case <-changed:
			case <-s.done:
			case <-ctx.Done():
			}
		}
	}
}

// Ask asks the holder of the term with this token to resign.
func (s *Store) Ask(ctx context.Context, name string, token uint64) error {
	if err := driver.CheckName("election", name); err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	return s.state.ask(name, token)
}

// DeleteRecord forgets the election's holder and token, as an operator's DELETE would. It returns the record, and reports whether there
// was one. It is for tests of how a program takes that.
func (s *Store) DeleteRecord(name string) (driver.Record, bool) { return s.state.deleteRecord(name) }

// OverwriteRecord makes the session with this ID the election's holder without asking anybody, as a stray client's write would.
// It reports whether there is such a session. It is for tests of how a program takes that.
func (s *Store) OverwriteRecord(name, sessionID string) bool {
	return s.state.overwriteRecord(name, sessionID)
}

// DropSession ends the session with this ID and frees all it holds, as an operator's revocation would. It reports whether there was one.
// It is for tests of how a program takes that.
func (s *Store) DropSession(sessionID string) bool { return s.state.dropSession(sessionID) }
