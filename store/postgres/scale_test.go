package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/postgres"
)

// inParallel calls f for 0 to n-1, some at a time.
func inParallel(n int, f func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

// A counter counts what goes to the server: scripts, and single statements outside of them. Pings and LISTEN are not among it.
type counter struct{ count atomic.Int64 }

func (c *counter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.count.Add(1)
	return ctx
}
func (c *counter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (c *counter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.count.Add(1)
	return ctx
}
func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// countedStore opens a store by way of a pool, and counts its requests.
func countedStore(t testing.TB, admin string) (*postgres.Store, *counter) {
	c := &counter{}
	config, err := pgxpool.ParseConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.Tracer = c
	config.ConnConfig.RuntimeParams["application_name"] = "tenure"
	pool, err := pgxpool.NewWithConfig(deadline(t), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s, err := postgres.New(deadline(t), pool, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, c
}

// What a member costs does not depend on the number of its elections: one transaction a renewal, whether it holds them or waits for them.
func TestTenThousandElections(t *testing.T) {
	admin := newDatabase(t)
	const n = 10_000
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	holderStore, holding := countedStore(t, admin)
	holder := openSession(t, holderStore, "holder", time.Hour)
	var before, after runtime.MemStats
	held := make([]uint64, n)
	inParallel(n, func(i int) {
		r, err := holder.Acquire(ctx, driver.Bid{Election: fmt.Sprint("e", i), Queue: true})
		if err != nil {
			t.Errorf("Acquire: %v", err)
		}
		held[i] = r.Token
	})
	waiterStore, waiting := countedStore(t, admin)
	waiter := openSession(t, waiterStore, "waiter", time.Hour)
	runtime.GC()
	runtime.ReadMemStats(&before)
	goroutines := runtime.NumGoroutine()
	inParallel(n, func(i int) {
		if _, err := waiter.Acquire(ctx, driver.Bid{Election: fmt.Sprint("e", i), Queue: true}); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("Acquire: %v", err)
		}
	})
	runtime.GC()
	runtime.ReadMemStats(&after)
	perWait := (after.HeapInuse + after.StackInuse - before.HeapInuse - before.StackInuse) / n
	t.Logf("a wait costs %d bytes and %.3f goroutines in this process", perWait, float64(runtime.NumGoroutine()-goroutines)/n)
	if perWait > 4<<10 {
		t.Errorf("a wait costs %d bytes", perWait)
	}
	if t.Failed() {
		return
	}

	const renewals = 20
	for _, s := range []struct {
		name string
		driver.Session
		*counter
	}{{"holder", holder, holding}, {"waiter", waiter, waiting}} {
		start, began := s.count.Load(), time.Now()
		for range renewals {
			grant, err := s.KeepAlive(ctx)
			if err != nil || grant.Holds != nil {
				t.Fatalf("%s: %v, Holds has %d", s.name, err, len(grant.Holds))
			}
		}
		took := time.Since(began) / renewals
		if got := s.count.Load() - start; got != renewals {
			t.Errorf("%s: %d renewals were %d requests", s.name, renewals, got)
		}
		t.Logf("%s: a renewal takes %v", s.name, took)
	}
	start := holding.count.Load() + waiting.count.Load()
	time.Sleep(5 * time.Second) // that nothing is asked meanwhile is what is tested
	if got := holding.count.Load() + waiting.count.Load() - start; got != 0 {
		t.Errorf("10,000 elections held and waited for cost %d requests in 5 s without a renewal", got)
	}

	// All are handed on when the holder ends.
	began := time.Now()
	if err := holder.Close(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("the end of a session with %d elections took %v", n, time.Since(began))
	inParallel(n, func(i int) {
		r, err := campaign(ctx, waiter, fmt.Sprint("e", i))
		if err != nil || r.Token <= held[i] {
			t.Errorf("election %d: token %d after %d, %v", i, r.Token, held[i], err)
		}
	})
	t.Logf("all were taken over after %v", time.Since(began))
	if grant, err := waiter.KeepAlive(ctx); err != nil || grant.Holds != nil {
		t.Errorf("KeepAlive: %v, Holds has %d", err, len(grant.Holds))
	}
	if time.Since(began) > time.Minute {
		t.Error("that took too long")
	}
}
