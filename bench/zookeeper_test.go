package bench_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/zookeeper"
)

func zookeeperAddr(storeURL string) string { return strings.TrimPrefix(storeURL, "zookeeper://") }

type silentLogger struct{}

func (silentLogger) Printf(string, ...any) {}

func newZooKeeperClient(b *testing.B, storeURL string) *zk.Conn {
	b.Helper()
	conn, _, err := zk.Connect([]string{zookeeperAddr(storeURL)}, 10*time.Second, zk.WithLogger(silentLogger{}))
	try(b, err)
	b.Cleanup(conn.Close)
	return conn
}

func openZooKeeper(ctx context.Context, b *testing.B, storeURL string) *zookeeper.Store {
	b.Helper()
	store, err := zookeeper.Open(ctx, storeURL)
	try(b, err)
	b.Cleanup(func() { try(b, store.Close()) })
	return store
}

// How long a handover takes on ZooKeeper, from the call of Term.Resign to the start of the successor's work, compared with one deletion of a node and its watch event at
// another client; and with the lock of the client library, in the same run and by turns.
func BenchmarkZooKeeperHandover(b *testing.B) {
	ctx := limit(b)
	storeURL := testserver.ZooKeeperURL(b)
	floor, watcher := newZooKeeperClient(b, storeURL), newZooKeeperClient(b, storeURL)
	line := newZooKeeperLine(ctx, b, storeURL)
	locks := newLockLine(b, storeURL)
	var took, least, theirs []time.Duration
	for b.Loop() {
		took, least, theirs = nil, nil, nil
		for range handovers {
			time.Sleep(30 * time.Millisecond) // the last leader stands again
			took = append(took, line.handOver(ctx, b))
			least = append(least, deletion(ctx, b, floor, watcher))
			time.Sleep(30 * time.Millisecond) // the last holder waits again
			theirs = append(theirs, locks.handOver(ctx, b))
		}
	}
	b.ReportMetric(float64(median(took))/float64(median(least)), "times-floor")
	b.ReportMetric(float64(median(theirs))/float64(median(least)), "lock-times-floor")
	b.ReportMetric(float64(median(took))/float64(median(theirs)), "times-lock(<=1)")
	b.ReportMetric(float64(median(took).Microseconds()), "median-µs")
	b.ReportMetric(float64(median(least).Microseconds()), "floor-µs")
	b.ReportMetric(float64(median(theirs).Microseconds()), "lock-µs")
	b.ReportMetric(0, "ns/op") // of a whole loop: says nothing
}

// deletion measures the deletion of a node and the event that tells another client of it.
func deletion(ctx context.Context, b *testing.B, c, watcher *zk.Conn) time.Duration {
	b.Helper()
	path := "/floor-" + rand.Text()
	_, err := c.Create(path, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	try(b, err)
	_, _, event, err := watcher.GetW(path)
	try(b, err)
	got := make(chan time.Time, 1)
	go func() {
		<-event
		got <- time.Now()
	}()
	time.Sleep(30 * time.Millisecond) // as before a handover
	began := time.Now()
	try(b, c.Delete(path, -1))
	select {
	case at := <-got:
		return at.Sub(began)
	case <-ctx.Done():
		b.Fatal("no event")
		return 0
	}
}

// A zookeeperLine is three members with stores of their own that stand in one election.
type zookeeperLine struct {
	starts chan start
	leads  start
}

func newZooKeeperLine(ctx context.Context, b *testing.B, storeURL string) *zookeeperLine {
	b.Helper()
	l := &zookeeperLine{starts: make(chan start, processes)}
	election := "bench/line-" + rand.Text()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{}, processes)
	for i := range processes {
		m, err := tenure.Join(ctx, openZooKeeper(ctx, b, storeURL), tenure.Config{ID: fmt.Sprint("member-", i), StablePeriod: 10 * time.Millisecond})
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
	return l
}

func (l *zookeeperLine) handOver(ctx context.Context, b *testing.B) time.Duration {
	b.Helper()
	began := time.Now()
	try(b, l.leads.term.Resign(ctx))
	select {
	case next := <-l.starts:
		if next.store == l.leads.store {
			b.Fatal("the successor is in the same process: this measures no notification")
		}
		l.leads = next
		return next.at.Sub(began)
	case <-ctx.Done():
		b.Fatal("no successor")
		return 0
	}
}

// A lockLine is three clients with connections of their own that wait for one lock of the client library.
type lockLine struct {
	starts chan lockStart
	leads  lockStart
}

type lockStart struct {
	at     time.Time
	unlock chan<- chan error
}

func newLockLine(b *testing.B, storeURL string) *lockLine {
	b.Helper()
	l := &lockLine{starts: make(chan lockStart, processes)}
	path := "/bench-lock-" + rand.Text()
	quit := make(chan struct{})
	b.Cleanup(func() { close(quit) })
	for range processes {
		conn := newZooKeeperClient(b, storeURL)
		go func() {
			for {
				lock := zk.NewLock(conn, path, zk.WorldACL(zk.PermAll))
				if err := lock.Lock(); err != nil {
					return // the connection is closed at the end
				}
				unlock := make(chan chan error)
				l.starts <- lockStart{time.Now(), unlock}
				select {
				case result := <-unlock:
					result <- lock.Unlock()
				case <-quit:
					return
				}
			}
		}()
	}
	l.leads = <-l.starts
	return l
}

func (l *lockLine) handOver(ctx context.Context, b *testing.B) time.Duration {
	b.Helper()
	result := make(chan error, 1)
	began := time.Now()
	l.leads.unlock <- result
	try(b, <-result)
	select {
	case l.leads = <-l.starts:
		return l.leads.at.Sub(began)
	case <-ctx.Done():
		b.Fatal("no successor")
		return 0
	}
}

// question is how many requests a call of packets is itself.
const question = 1

// packets returns how many requests the server has received since it started.
func packets(b *testing.B, storeURL string) int64 {
	b.Helper()
	for line := range strings.Lines(testserver.ZooKeeperCommand(b, zookeeperAddr(storeURL), "mntr")) {
		if value, ok := strings.CutPrefix(line, "zk_packets_received\t"); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			try(b, err)
			return int64(n)
		}
	}
	b.Fatal("mntr tells no zk_packets_received")
	return 0
}

// How many requests a handover costs, as the server counts them, with few and with many waiters: a release wakes the next in line only (L4).
func BenchmarkZooKeeperRequests(b *testing.B) {
	var few float64
	for _, waiters := range []int{2, 500} {
		b.Run(fmt.Sprint("waiters=", waiters), func(b *testing.B) {
			ctx := limit(b)
			storeURL := testserver.StartZooKeeper(b).URL() // which nobody else asks
			store := openZooKeeper(ctx, b, storeURL)
			var perHandover float64
			for b.Loop() {
				perHandover = requestsPerHandover(ctx, b, store, storeURL, waiters)
			}
			if few == 0 {
				few = perHandover
			}
			b.ReportMetric(perHandover, "requests/handover")
			b.ReportMetric(perHandover-few, "more-than-with-2(<=4)")
			b.ReportMetric(0, "ns/op") // of a whole loop: says nothing
		})
	}
}

func requestsPerHandover(ctx context.Context, b *testing.B, store *zookeeper.Store, storeURL string, waiters int) float64 {
	b.Helper()
	bid := driver.Bid{Election: "bench/requests-" + rand.Text(), Queue: true}
	tokens := make(chan uint64, 1+waiters)
	var line []driver.Session
	for range 1 + waiters {
		s, err := store.Open(ctx, "m", 10*time.Minute)
		try(b, err)
		b.Cleanup(func() { _ = s.Close(context.Background()) }) // the server ends as well
		line = append(line, s)
		r, err := s.Acquire(ctx, bid)
		if err == nil {
			tokens <- r.Token
			continue
		}
		if !errors.Is(err, driver.ErrHeld) {
			b.Fatal(err)
		}
		go func() {
			for s.Await(ctx, bid.Election) == nil {
				if r, err := s.Acquire(ctx, bid); err == nil {
					tokens <- r.Token
					return
				}
			}
		}()
	}
	before := packets(b, storeURL)
	n := min(20, waiters)
	for i := range n {
		try(b, line[i].Release(ctx, bid.Election, <-tokens))
	}
	<-tokens // the last one leads
	// What the handovers have set going ends when the server hears nothing more.
	after := packets(b, storeURL)
	until(ctx, b, "the line to come to rest", func() bool {
		time.Sleep(200 * time.Millisecond) // in which whoever is next looks again
		last := after
		after = packets(b, storeURL)
		return after == last+question
	})
	return float64(after-before) / float64(n)
}

// What 1,000 elections with three members each cost while nothing happens, in requests that the server counts: each member renews once per third of a TTL (C2).
func BenchmarkZooKeeperIdle(b *testing.B) {
	ctx := limit(b)
	storeURL := testserver.StartZooKeeper(b).URL() // which nobody else asks
	const elections, ttl = 1000, 15 * time.Second
	var members []*tenure.Member
	for i := range processes {
		m, err := tenure.Join(ctx, openZooKeeper(ctx, b, storeURL), tenure.Config{ID: fmt.Sprint("member-", i), TTL: ttl})
		try(b, err)
		b.Cleanup(func() {
			if err := m.Leave(context.Background()); err != nil {
				b.Error(err)
			}
		})
		members = append(members, m)
	}
	for i := range elections {
		_, err := members[0].Campaign(ctx, fmt.Sprint("bench/idle-", i))
		try(b, err)
	}
	waiting, cancel := context.WithCancel(ctx)
	done := make(chan struct{}, 2*elections)
	for _, m := range members[1:] {
		for i := range elections {
			go func() {
				_, _ = m.Campaign(waiting, fmt.Sprint("bench/idle-", i)) // until it is cancelled
				done <- struct{}{}
			}()
		}
	}
	b.Cleanup(func() {
		cancel()
		for range 2 * elections {
			<-done
		}
	})
	// All stand when the server hears no more than renewals.
	until(ctx, b, "all members to stand", func() bool {
		before := packets(b, storeURL)
		time.Sleep(time.Second) // in which three renewals may come
		return packets(b, storeURL)-before <= 3
	})
	var perThird float64
	for b.Loop() {
		const thirds = 6
		before := packets(b, storeURL)
		time.Sleep(thirds * ttl / 3) // what is counted
		perThird = float64(packets(b, storeURL)-before-question) / thirds
	}
	b.ReportMetric(perThird, "requests-per-TTL/3(<=3)")
	b.ReportMetric(0, "ns/op") // of a whole loop: says nothing
}
