package bench_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/consul"
)

// newConsulClient returns a client with connections of its own.
func newConsulClient(b *testing.B, storeURL string) *api.Client {
	b.Helper()
	addr, _, _ := strings.Cut(strings.TrimPrefix(storeURL, "consul://"), "?")
	config := api.DefaultConfig()
	config.Address = addr
	config.HttpClient = &http.Client{Transport: config.Transport}
	client, err := api.NewClient(config)
	try(b, err)
	return client
}

func consulKey(kind string) string { return kind + "-" + strings.ToLower(rand.Text()[:10]) }

// How long a handover takes on Consul, from the call of Term.Resign to the start of the successor's work, compared with one release of a key and the return of a waiting read at
// another client; and with the client's own lock, whose candidates are measured in turn with ours.
func BenchmarkConsulHandover(b *testing.B) {
	ctx := limit(b)
	storeURL := testserver.ConsulURL(b)
	floor := newConsulFloor(b, storeURL)
	line := newConsulLine(ctx, b, storeURL)
	theirs := newConsulLocks(ctx, b, storeURL)
	var took, least, others []time.Duration
	for b.Loop() {
		took, least, others = nil, nil, nil
		for range handovers {
			time.Sleep(100 * time.Millisecond) // the last leader stands again, and waits
			took = append(took, line.handOver(ctx, b))
			time.Sleep(100 * time.Millisecond) // as before a handover of ours
			others = append(others, theirs.handOver(ctx, b))
			time.Sleep(100 * time.Millisecond) // as before a handover
			least = append(least, floor.once(ctx, b))
		}
	}
	b.ReportMetric(float64(median(took))/float64(median(least)), "times-floor(<=1.4)")
	b.ReportMetric(float64(median(others))/float64(median(least)), "api.Lock-times-floor")
	b.ReportMetric(float64(median(took).Microseconds()), "median-µs")
	b.ReportMetric(float64(median(least).Microseconds()), "floor-µs")
	b.ReportMetric(float64(median(others).Microseconds()), "api.Lock-µs")
	b.ReportMetric(0, "ns/op") // of a whole loop: says nothing
}

// newConsulLine makes three members with stores of their own that stand in one election.
func newConsulLine(ctx context.Context, b *testing.B, storeURL string) *leaseLine {
	b.Helper()
	l := &leaseLine{starts: make(chan start, processes)}
	election := consulKey("line")
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{}, processes)
	for i := range processes {
		store, err := consul.Open(storeURL)
		try(b, err)
		b.Cleanup(func() { try(b, store.Close()) })
		m, err := tenure.Join(ctx, store, tenure.Config{ID: fmt.Sprint("member-", i), StablePeriod: 30 * time.Millisecond})
		try(b, err)
		b.Cleanup(func() {
			if err := m.Leave(context.Background()); err != nil {
				b.Error(err)
			}
		})
		go func() {
			defer func() { done <- struct{}{} }()
			_ = m.Lead(ctx, election, func(ctx context.Context, term *tenure.Term) error {
				l.starts <- start{at: time.Now(), store: i, term: term}
				<-ctx.Done()
				return nil
			})
		}()
	}
	b.Cleanup(func() {
		cancel()
		for range processes {
			<-done
		}
	})
	l.leads = <-l.starts
	time.Sleep(time.Second) // the others begin to wait
	return l
}

// consulLocks are three candidates with clients of their own that take one lock in turn.
type consulLocks struct {
	starts chan time.Time
	resign chan struct{}
}

func newConsulLocks(ctx context.Context, b *testing.B, storeURL string) *consulLocks {
	b.Helper()
	l := &consulLocks{starts: make(chan time.Time, processes), resign: make(chan struct{})}
	key := consulKey("api-lock")
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, processes)
	for range processes {
		lock, err := newConsulClient(b, storeURL).LockKey(key)
		try(b, err)
		go func() {
			done <- func() error {
				for ctx.Err() == nil {
					lost, err := lock.Lock(ctx.Done())
					if err != nil || lost == nil {
						return err
					}
					l.starts <- time.Now()
					select {
					case <-l.resign:
					case <-ctx.Done():
					}
					if err := lock.Unlock(); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	b.Cleanup(func() {
		cancel()
		for range processes {
			if err := <-done; err != nil {
				b.Error(err)
			}
		}
	})
	<-l.starts
	time.Sleep(time.Second) // the others begin to wait
	return l
}

func (l *consulLocks) handOver(ctx context.Context, b *testing.B) time.Duration {
	b.Helper()
	began := time.Now()
	l.resign <- struct{}{}
	select {
	case at := <-l.starts:
		return at.Sub(began)
	case <-ctx.Done():
		b.Fatal("no successor")
		return 0
	}
}

// A consulFloor measures one release of a key and the return of another client's waiting read.
type consulFloor struct {
	writes, waits *api.Client
	key, session  string
}

func newConsulFloor(b *testing.B, storeURL string) *consulFloor {
	b.Helper()
	f := &consulFloor{writes: newConsulClient(b, storeURL), waits: newConsulClient(b, storeURL), key: consulKey("floor")}
	var err error
	f.session, _, err = f.writes.Session().CreateNoChecks(&api.SessionEntry{TTL: "10m", Behavior: api.SessionBehaviorDelete}, nil)
	try(b, err)
	b.Cleanup(func() {
		_, err := f.writes.Session().Destroy(f.session, nil)
		try(b, err)
	})
	return f
}

func (f *consulFloor) once(ctx context.Context, b *testing.B) time.Duration {
	b.Helper()
	pair := &api.KVPair{Key: f.key, Session: f.session}
	if ok, _, err := f.writes.KV().Acquire(pair, nil); err != nil || !ok {
		b.Fatal("acquire: ", ok, err)
	}
	_, meta, err := f.waits.KV().Get(f.key, nil)
	try(b, err)
	type answer struct {
		at   time.Time
		free bool
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		kv, _, err := f.waits.KV().Get(f.key, (&api.QueryOptions{WaitIndex: meta.LastIndex, WaitTime: time.Minute}).WithContext(ctx))
		got <- answer{time.Now(), err == nil && kv != nil && kv.Session == "", err}
	}()
	time.Sleep(100 * time.Millisecond) // the read waits by then
	began := time.Now()
	if ok, _, err := f.writes.KV().Release(pair, nil); err != nil || !ok {
		b.Fatal("release: ", ok, err)
	}
	a := <-got
	if a.err != nil || !a.free {
		b.Fatal("waiting read: ", a.free, a.err)
	}
	return a.at.Sub(began)
}
