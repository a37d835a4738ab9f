package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/gotenure/tenure/driver"
)

// Watch yields the current record and each later state, as one watch at the server brings them to all who follow the election in this store.
func (s *Store) Watch(ctx context.Context, name string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		if err := s.watch(ctx, name, func(r driver.Record) bool { return yield(r, nil) }); err != nil {
			yield(driver.Record{}, err)
		}
	}
}

func (s *Store) watch(ctx context.Context, name string, yield func(driver.Record) bool) error {
	if err := driver.CheckName("election", name); err != nil {
		return fmt.Errorf("kubernetes: %w", err)
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	e := s.use(name)
	defer e.leave()
	e.follow()
	defer e.unfollow()
	if v := e.view(); v.failure == nil {
		// The watch runs already, and may be a little behind.
		l, err := e.fetch(ctx)
		if err != nil {
			return s.access.explain(ctx, e.lease, err)
		}
		if !l.exists() && v.lease != nil {
			e.await(ctx, func(l *lease) bool { return !l.exists() || l.version > v.lease.version })
		}
	}
	var last *driver.Record
	for {
		v := e.view()
		switch {
		case v.failure != nil && !errors.Is(v.failure, errStarting):
			return v.failure
		case v.failure == nil && v.lease != nil:
			if v.lease.exists() {
				if got, err := v.lease.election(); err != nil || got != name {
					return v.lease.corrupt("it is not that of election %q", name)
				}
			}
			r, err := v.lease.record(name, v.dead)
			if err != nil {
				return err
			}
			if last == nil || !same(*last, r) {
				last = &r
				if !yield(r) {
					return nil
				}
			}
		}
		select {
		case <-v.news:
		case <-ctx.Done():
		case <-s.done:
		}
		if err := s.ready(ctx); err != nil {
			return err
		}
	}
}

// await waits until the newest state satisfies f, the watch fails, or the context ends.
func (e *election) await(ctx context.Context, f func(*lease) bool) {
	for {
		v := e.view()
		if v.failure != nil || v.lease != nil && f(v.lease) {
			return
		}
		select {
		case <-v.news:
		case <-ctx.Done():
			return
		}
	}
}

func same(a, b driver.Record) bool {
	return a.Leader == b.Leader && a.Session == b.Session && a.Token == b.Token && string(a.Value) == string(b.Value)
}
