package bench_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/etcd"
)

func etcdClient(b *testing.B, storeURL string) *clientv3.Client {
	b.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{strings.TrimPrefix(storeURL, "etcd://")}, Logger: zap.NewNop()})
	try(b, err)
	b.Cleanup(func() { _ = c.Close() })
	return c
}

func etcdStore(b *testing.B, storeURL string) *etcd.Store {
	b.Helper()
	s, err := etcd.Open(b.Context(), storeURL)
	try(b, err)
	b.Cleanup(func() { try(b, s.Close()) })
	return s
}

// A turn is one candidate of a kind: it waits until it leads, and gives up.
type turn struct {
	campaign func(ctx context.Context) error
	resign   func(ctx context.Context) error
}

// etcdTurns measures, for three candidates, from the resignation of one to the next one's knowledge that it leads. rest is the pause before each, in which the last leader has
// stood again: a short one leaves the watch of whoever is next fresh. It stands again when the next one leads, as a process that is replaced, not beside the handover.
type etcdTurns struct {
	turns []turn
	leads chan int
	now   int
	stop  []chan chan time.Time
	again []chan struct{}
}

func newEtcdTurns(ctx context.Context, b *testing.B, turns []turn) *etcdTurns {
	b.Helper()
	t := &etcdTurns{turns: turns, leads: make(chan int, len(turns))}
	for i, c := range turns {
		stop, again := make(chan chan time.Time), make(chan struct{}, 1)
		t.stop, t.again = append(t.stop, stop), append(t.again, again)
		go func() {
			for c.campaign(ctx) == nil {
				t.leads <- i
				select {
				case began := <-stop:
					now := time.Now()
					if c.resign(ctx) != nil {
						return
					}
					began <- now
				case <-ctx.Done():
					return
				}
				select {
				case <-again:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	t.now = <-t.leads
	return t
}

func (t *etcdTurns) once(ctx context.Context, b *testing.B) time.Duration {
	b.Helper()
	began := make(chan time.Time, 1)
	t.stop[t.now] <- began
	select {
	case next := <-t.leads:
		at := time.Now()
		if next == t.now {
			b.Fatal("the candidate that resigned leads again: this measures no notification")
		}
		t.again[t.now] <- struct{}{}
		t.now = next
		return at.Sub(<-began)
	case <-ctx.Done():
		b.Fatal("no successor")
		return 0
	}
}

func ourTurns(b *testing.B, storeURL, election string) (turns []turn) {
	b.Helper()
	for i := range processes {
		m, err := tenure.Join(b.Context(), etcdStore(b, storeURL), tenure.Config{ID: fmt.Sprint("member-", i)})
		try(b, err)
		b.Cleanup(func() {
			if err := m.Leave(context.Background()); err != nil {
				b.Error(err)
			}
		})
		var term *tenure.Term
		turns = append(turns, turn{
			func(ctx context.Context) (err error) { term, err = m.Campaign(ctx, election); return err },
			func(ctx context.Context) error { return term.Resign(ctx) },
		})
	}
	return turns
}

func theirTurns(b *testing.B, storeURL, election string) (turns []turn) {
	b.Helper()
	for range processes {
		session, err := concurrency.NewSession(etcdClient(b, storeURL))
		try(b, err)
		b.Cleanup(func() { _ = session.Close() })
		e := concurrency.NewElection(session, election)
		turns = append(turns, turn{func(ctx context.Context) error { return e.Campaign(ctx, "x") }, e.Resign})
	}
	return turns
}

// etcdFloor measures one deletion, after a rest, and the event that tells another client of it.
func etcdFloor(ctx context.Context, b *testing.B, storeURL string) func(rest func()) time.Duration {
	b.Helper()
	writer, key := etcdClient(b, storeURL), "floor-"+rand.Text()
	got := make(chan time.Time, 1)
	events := etcdClient(b, storeURL).Watch(ctx, key, clientv3.WithCreatedNotify(), clientv3.WithFilterPut())
	<-events
	go func() {
		for range events {
			got <- time.Now()
		}
	}()
	return func(rest func()) time.Duration {
		_, err := writer.Put(ctx, key, "x")
		try(b, err)
		rest()
		began := time.Now()
		_, err = writer.Delete(ctx, key)
		try(b, err)
		return (<-got).Sub(began)
	}
}

// How long a handover takes on etcd, from the call that resigns to the successor's knowledge that it leads, compared with one deletion and its event, and with
// concurrency.Election, all in turns within one run. With watch=fresh the successor has only just begun to wait.
func BenchmarkEtcdHandover(b *testing.B) {
	for _, kind := range []string{"settled", "fresh"} {
		b.Run("watch="+kind, func(b *testing.B) {
			ctx, cancel := context.WithCancel(limit(b))
			defer cancel()
			storeURL := testserver.EtcdURL(b)
			floor := etcdFloor(ctx, b, storeURL)
			ours := newEtcdTurns(ctx, b, ourTurns(b, storeURL, "ours-"+rand.Text()))
			theirs := newEtcdTurns(ctx, b, theirTurns(b, storeURL, "theirs-"+rand.Text()))
			bystander := etcdClient(b, storeURL)
			rest := func() { // is the same before each of the three: the longer a machine has been idle, the slower it is
				time.Sleep(60 * time.Millisecond) // the last leader stands again, and what the handover has set going ends
				_, err := bystander.Put(ctx, "rest", "x")
				try(b, err)
				time.Sleep(20 * time.Millisecond) // after the same event, for all
			}
			if kind == "fresh" {
				rest = func() { time.Sleep(3 * time.Millisecond) } // the last leader stands again
			}
			var took, least, peer []time.Duration
			for b.Loop() {
				took, least, peer = nil, nil, nil
				for range handovers {
					rest()
					took = append(took, ours.once(ctx, b))
					least = append(least, floor(rest))
					rest()
					peer = append(peer, theirs.once(ctx, b))
				}
			}
			cancel()
			b.ReportMetric(float64(median(took))/float64(median(least)), "times-floor(<=1.3)")
			b.ReportMetric(float64(median(peer))/float64(median(least)), "concurrency-times-floor")
			b.ReportMetric(float64(median(took).Microseconds()), "median-µs")
			b.ReportMetric(float64(median(least).Microseconds()), "floor-µs")
			b.ReportMetric(float64(median(peer).Microseconds()), "concurrency-µs")
			b.ReportMetric(0, "ns/op") // of a whole loop: says nothing
		})
	}
}

// etcdReceived returns how many messages of clients the server has received: each request, renewal and watch is one.
func etcdReceived(b *testing.B) (sum float64) {
	b.Helper()
	metrics := os.Getenv("TENURE_TEST_ETCD_METRICS")
	if metrics == "" {
		b.Fatal("TENURE_TEST_ETCD_METRICS is not set: run the benchmarks through go run ./dev/servers")
	}
	r, err := http.Get(metrics)
	try(b, err)
	defer func() { _ = r.Body.Close() }() // it is read
	for s := bufio.NewScanner(r.Body); s.Scan(); {
		if line := s.Text(); strings.HasPrefix(line, "grpc_server_msg_received_total{") {
			v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			try(b, err)
			sum += v
		}
	}
	return sum
}

// How many messages a handover costs etcd while others wait, and how many idle elections cost.
func BenchmarkEtcdRequests(b *testing.B) {
	for _, waiters := range []int{2, 500} {
		b.Run(fmt.Sprint("waiters=", waiters), func(b *testing.B) {
			ctx := limit(b)
			storeURL := testserver.EtcdURL(b)
			store := etcdStore(b, storeURL)
			election := "requests-" + rand.Text()
			type office struct {
				s     driver.Session
				token uint64
			}
			waiting, cancel := context.WithCancel(ctx)
			defer cancel()
			won := make(chan office, 1)
			for i := range waiters + 1 {
				s, err := store.Open(ctx, fmt.Sprint("member-", i), 10*time.Minute)
				try(b, err)
				b.Cleanup(func() { _ = s.Close(context.Background()) })
				bid := driver.Bid{Election: election, Queue: true}
				r, err := s.Acquire(ctx, bid)
				if err == nil {
					won <- office{s, r.Token}
					continue
				}
				go func() {
					for errors.Is(err, driver.ErrHeld) && s.Await(waiting, election) == nil {
						r, err = s.Acquire(waiting, bid)
					}
					if err == nil {
						won <- office{s, r.Token}
					}
				}()
			}
			const rounds = 2
			var each float64
			for b.Loop() {
				if each != 0 {
					continue // the waiters are used up
				}
				time.Sleep(2 * time.Second) // all watches have begun
				before := etcdReceived(b)
				for range rounds {
					o := <-won
					try(b, o.s.Release(ctx, election, o.token))
				}
				<-won
				time.Sleep(200 * time.Millisecond) // what a handover sets going ends
				each = (etcdReceived(b) - before) / rounds
			}
			b.ReportMetric(each, "messages/handover")
			b.ReportMetric(0, "ns/op") // of a whole loop: says nothing
		})
	}
	b.Run("idle", func(b *testing.B) {
		ctx := limit(b)
		storeURL := testserver.EtcdURL(b)
		const elections, ttl = 1000, 15 * time.Second
		prefix := "idle-" + rand.Text() + "-"
		waiting, cancel := context.WithCancel(ctx)
		defer cancel()
		done := make(chan struct{})
		for i := range processes {
			m, err := tenure.Join(ctx, etcdStore(b, storeURL), tenure.Config{ID: fmt.Sprint("member-", i), TTL: ttl})
			try(b, err)
			b.Cleanup(func() { _ = m.Leave(context.Background()) })
			for n := range elections {
				if i == 0 {
					_, err := m.Campaign(ctx, fmt.Sprint(prefix, n))
					try(b, err)
					continue
				}
				go func() { _, _ = m.Campaign(waiting, fmt.Sprint(prefix, n)); done <- struct{}{} }()
			}
		}
		for last := -1.0; ; { // until everybody waits
			time.Sleep(ttl) // a renewal of each comes between
			now := etcdReceived(b)
			if last >= 0 && now-last < 30 {
				break
			}
			last = now
		}
		var messages float64
		for b.Loop() {
			before := etcdReceived(b)
			time.Sleep(2 * ttl) // what is measured: a time in which nothing happens
			messages = etcdReceived(b) - before
		}
		b.ReportMetric(messages/6, "messages/(TTL/3)(<=3)")
		b.ReportMetric(0, "ns/op") // of a whole loop: says nothing
		cancel()
		for range 2 * elections {
			<-done
		}
	})
}
