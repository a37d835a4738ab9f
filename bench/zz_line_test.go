package bench_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/postgres"
	"github.com/jackc/pgx/v5"
)

type zzS struct {
	driver.Store
}
type zzSess struct{ driver.Session }

var zzMu sync.Mutex
var zzAt = map[string]time.Time{}

func mark(k string) { zzMu.Lock(); zzAt[k] = time.Now(); zzMu.Unlock() }

func (s zzS) Open(ctx context.Context, m string, ttl time.Duration) (driver.Session, error) {
	d, err := s.Store.Open(ctx, m, ttl)
	return zzSess{d}, err
}
func (s zzSess) Acquire(ctx context.Context, b driver.Bid) (driver.Record, error) {
	t := time.Now()
	r, err := s.Session.Acquire(ctx, b)
	if err == nil {
		zzMu.Lock()
		zzAt["acq0"], zzAt["acq1"] = t, time.Now()
		zzMu.Unlock()
	}
	return r, err
}
func (s zzSess) Release(ctx context.Context, e string, t uint64) error {
	mark("rel0")
	err := s.Session.Release(ctx, e, t)
	mark("rel1")
	return err
}
func (s zzSess) Await(ctx context.Context, e string) error {
	err := s.Session.Await(ctx, e)
	mark("await")
	return err
}

var zzWrap func(*postgres.Store) driver.Store = func(s *postgres.Store) driver.Store { return s }

func BenchmarkZZLine(b *testing.B) {
	zzWrap = func(s *postgres.Store) driver.Store { return zzS{s} }
	ctx := context.Background()
	database := newDatabase(b, testserver.PostgresURL(b))
	f := newFloor(b, database)
	hear := connect(b, database)
	hear.Exec(ctx, "LISTEN tenure")
	go func() {
		for {
			if _, err := hear.WaitForNotification(context.Background()); err != nil {
				return
			}
			mark("heard")
		}
	}()
	l := newLine(ctx, b, database, 3)
	zzWrap = func(s *postgres.Store) driver.Store { return s }
	for b.Loop() {
		got := map[string][]time.Duration{}
		for range 100 {
			l.settle(ctx, b)
			t := time.Now()
			d := l.handOver(ctx, b)
			time.Sleep(5 * time.Millisecond)
			zzMu.Lock()
			for k, v := range zzAt {
				got[k] = append(got[k], v.Sub(t))
			}
			zzMu.Unlock()
			got["start"] = append(got["start"], d)
			l.settle(ctx, b)
			got["floor"] = append(got["floor"], f.once(ctx, b))
		}
		for _, k := range []string{"rel0", "heard", "await", "rel1", "acq0", "acq1", "start", "floor"} {
			fmt.Println(k, median(got[k]))
		}
	}
}

var _ = pgx.Conn{}
