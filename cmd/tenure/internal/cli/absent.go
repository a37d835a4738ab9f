package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gotenure/tenure/driver"
)

// absencePoll is the time between two looks whether the file of an absent store is there.
const absencePoll = 250 * time.Millisecond

// An absent store stands for one whose file nobody has made yet, for commands that only look: it is empty, and makes no file. Once the file is there it
// is that store.
type absent struct {
	file string
	open func(ctx context.Context) (driver.Store, error)

	mu    sync.Mutex
	store driver.Store // nil: absent
}

var (
	_ driver.Store = (*absent)(nil)
	_ driver.Asker = (*absent)(nil)
)

// missing reports whether there is no file, and something could make it.
func (l *location) missing(file string) bool {
	if !noFile(file) {
		return false
	}
	// The directory of the default store is made along with it; any other has to exist.
	return l.file != "" || !noFile(filepath.Dir(file))
}

func noFile(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// present returns the store, or nil while it is absent.
func (a *absent) present(ctx context.Context) (driver.Store, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.store != nil || noFile(a.file) {
		return a.store, nil
	}
	s, err := a.open(ctx)
	if err != nil {
		return nil, err
	}
	a.store = s
	return s, nil
}

// Open implements driver.Store.
func (a *absent) Open(ctx context.Context, member string, ttl time.Duration) (driver.Session, error) {
	s, err := a.present(ctx)
	switch {
	case err != nil:
		return nil, err
	case s == nil:
		return nil, fmt.Errorf("%w: file %s does not exist: create it with tenure store init", driver.ErrInvalid, a.file)
	}
	return s.Open(ctx, member, ttl)
}

// Get implements driver.Store.
func (a *absent) Get(ctx context.Context, election string) (driver.Record, error) {
	s, err := a.present(ctx)
	if err != nil || s == nil {
		return driver.Record{Election: election}, err
	}
	return s.Get(ctx, election)
}

// List implements driver.Store.
func (a *absent) List(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		s, err := a.present(ctx)
		if err != nil {
			yield(driver.Record{}, err)
			return
		}
		if s != nil {
			s.List(ctx, prefix)(yield)
		}
	}
}

// Watch implements driver.Store.
func (a *absent) Watch(ctx context.Context, election string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		tick := time.NewTicker(absencePoll)
		defer tick.Stop()
		told := false
		for {
			s, err := a.present(ctx)
			if err != nil {
				yield(driver.Record{}, err)
				return
			}
			if s != nil {
				for r, err := range s.Watch(ctx, election) {
					if told && err == nil && r.Session == "" && r.Token == 0 {
						continue // as it was while the store was absent
					}
					told = false
					if !yield(r, err) {
						return
					}
				}
				return
			}
			if !told && !yield(driver.Record{Election: election}, nil) {
				return
			}
			told = true
			select {
			case <-ctx.Done():
				yield(driver.Record{}, fmt.Errorf("watch election %q: %w", election, ctx.Err()))
				return
			case <-tick.C:
			}
		}
	}
}

// Ask implements driver.Asker.
func (a *absent) Ask(ctx context.Context, election string, token uint64) error {
	s, err := a.present(ctx)
	if err != nil {
		return err
	}
	asker, ok := s.(driver.Asker)
	if !ok {
		return driver.ErrNotHeld // by nobody: there is no store
	}
	return asker.Ask(ctx, election, token)
}

// Info implements driver.Store.
func (a *absent) Info() driver.Info {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.store == nil {
		return driver.Info{Name: "absent"}
	}
	return a.store.Info()
}

// Close implements driver.Store.
func (a *absent) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.store == nil {
		return nil
	}
	return a.store.Close()
}
