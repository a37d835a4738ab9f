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

	"github.com/gotenure/tenure/driver"
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

// What a member costs does not depend on the number of its elections: one transaction a renewal, whether it holds them or waits for them.
func TestTenThousandElections(t *testing.T) {
	admin := newDatabase(t)
	const n = 10_000
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	holder := openSession(t, openStore(t, admin), "holder", time.Hour)
	var before, after runtime.MemStats
	held := make([]uint64, n)
	inParallel(n, func(i int) {
		r, err := holder.Acquire(ctx, driver.Bid{Election: fmt.Sprint("e", i), Queue: true})
		if err != nil {
			t.Errorf("Acquire: %v", err)
		}
		held[i] = r.Token
	})
	waiterStore := openStore(t, admin)
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

	// The counts are those of another server process's statistics, so the operator looks from another database.
	operator := connect(t, adminURL(t))
	database := query[string](t, connect(t, admin), `SELECT current_database()::text`)
	count := func() int64 {
		last, since := int64(-1), time.Now()
		for {
			now := query[int64](t, operator, `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1`, database)
			if now != last {
				last, since = now, time.Now()
			}
			if time.Since(since) > 2*time.Second { // a server process reports within a second of becoming idle
				return now
			}
			time.Sleep(50 * time.Millisecond) // between two looks
		}
	}
	renewals := 20
	for _, s := range []struct {
		name string
		driver.Session
	}{{"holder", holder}, {"waiter", waiter}} {
		start := count()
		began := time.Now()
		for range renewals {
			grant, err := s.KeepAlive(ctx)
			if err != nil || grant.Holds != nil {
				t.Fatalf("%s: %v, Holds has %d", s.name, err, len(grant.Holds))
			}
		}
		took := time.Since(began) / time.Duration(renewals)
		// Autovacuum works in the same database.
		if got := count() - start; got < int64(renewals) || got > int64(renewals)+10 {
			t.Errorf("%s: %d renewals were %d transactions", s.name, renewals, got)
		}
		t.Logf("%s: a renewal takes %v", s.name, took)
	}

	// While nothing happens nothing is asked.
	start := count()
	time.Sleep(5 * time.Second) // that is what is tested
	if got := count() - start; got > 10 {
		t.Errorf("10,000 elections held and waited for cost %d transactions in 5 s without a renewal", got)
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
