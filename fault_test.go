package tenure_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/memory"
)

var errDown = errors.New("connection refused")

// A bench is a memory store whose calls a test can count and intercept, with members and the events they emit.
type bench struct {
	*memory.Store
	t *testing.T

	renewals, acquires, releases, opens, closes atomic.Int64

	mu     sync.Mutex
	before func(ctx context.Context, op string) error // instead of the call when it returns an error
	after  func(ctx context.Context, op string) error // instead of the answer when it returns an error
	events []tenure.Event

	grant time.Duration // what renewals are said to have granted; 0: the truth
}

func newBench(t *testing.T) *bench {
	b := &bench{Store: memory.New(), t: t}
	t.Cleanup(func() { b.Store.Close() })
	return b
}

func (b *bench) intercept(before, after func(ctx context.Context, op string) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.before, b.after = before, after
}

// down makes every call fail, or heals the store.
func (b *bench) down(yes bool) {
	if !yes {
		b.intercept(nil, nil)
		return
	}
	b.intercept(func(context.Context, string) error { return errDown }, nil)
}

func (b *bench) do(ctx context.Context, op string, count *atomic.Int64, f func() error) error {
	count.Add(1)
	b.mu.Lock()
	before, after := b.before, b.after
	b.mu.Unlock()
	if before != nil {
		if err := before(ctx, op); err != nil {
			return err
		}
	}
	err := f()
	if after != nil {
		if err := after(ctx, op); err != nil {
			return err
		}
	}
	return err
}

func (b *bench) join(cfg tenure.Config) *tenure.Member {
	b.t.Helper()
	cfg.Observer = func(e tenure.Event) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.events = append(b.events, e)
	}
	m, err := tenure.Join(b.t.Context(), b, cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	return m
}

// eventsOf returns the events of one type so far.
func eventsOf[E tenure.Event](b *bench) []E {
	b.mu.Lock()
	defer b.mu.Unlock()
	var es []E
	for _, e := range b.events {
		if e, ok := e.(E); ok {
			es = append(es, e)
		}
	}
	return es
}

func (b *bench) leader(election string) string {
	b.t.Helper()
	rec, err := b.Get(b.t.Context(), election)
	if err != nil {
		b.t.Fatal(err)
	}
	return rec.Leader
}

func (b *bench) Open(ctx context.Context, member string, ttl time.Duration) (driver.Session, error) {
	var ds driver.Session
	err := b.do(ctx, "open", &b.opens, func() (err error) {
		ds, err = b.Store.Open(ctx, member, ttl)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &benchSession{Session: ds, b: b}, nil
}

type benchSession struct {
	driver.Session
	b *bench
}

func (s *benchSession) KeepAlive(ctx context.Context) (g driver.Grant, err error) {
	err = s.b.do(ctx, "renew", &s.b.renewals, func() (err error) {
		g, err = s.Session.KeepAlive(ctx)
		return err
	})
	if s.b.grant != 0 {
		g.TTL = s.b.grant
	}
	return g, err
}

func (s *benchSession) Acquire(ctx context.Context, bid driver.Bid) (rec driver.Record, err error) {
	err = s.b.do(ctx, "acquire", &s.b.acquires, func() (err error) {
		rec, err = s.Session.Acquire(ctx, bid)
		return err
	})
	return rec, err
}

func (s *benchSession) Release(ctx context.Context, election string, token uint64) error {
	return s.b.do(ctx, "release", &s.b.releases, func() error { return s.Session.Release(ctx, election, token) })
}

func (s *benchSession) Close(ctx context.Context) error {
	return s.b.do(ctx, "close", &s.b.closes, func() error { return s.Session.Close(ctx) })
}

// untilDone is work that stops when its term ends.
func untilDone(ctx context.Context, _ *tenure.Term) error { <-ctx.Done(); return nil }
