package bench_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/postgres"
)

const (
	handovers = 100
	// processes is how many stores the members are spread over: each has connections of its own, as a process has. Members stand in line in turn, so that, with
	// 3 and with 101 of them, none hands over to a member of its own store.
	processes = 3
)

// How long a handover takes on PostgreSQL, from the call of Term.Resign to the start of the successor's work, compared with one commit and one notification
// received: the least that any mechanism in the database needs.
func BenchmarkHandover(b *testing.B) {
	for _, waiters := range []int{2, 100} {
		b.Run(fmt.Sprint("waiters=", waiters), func(b *testing.B) {
			ctx := limit(b)
			database := newDatabase(b, testserver.PostgresURL(b))
			f := newFloor(b, database)
			line := newLine(ctx, b, database, 1+waiters)
			var took, floor []time.Duration
			for b.Loop() {
				took, floor = nil, nil
				for range handovers {
					// Both begin after a pause: that of the line lasts until the last leader is in the queue again, that of the floor is of the same kind.
					line.settle(ctx, b)
					took = append(took, line.handOver(ctx, b))
					line.settle(ctx, b)
					floor = append(floor, f.once(ctx, b))
				}
			}
			ratio := float64(median(took)) / float64(median(floor))
			b.ReportMetric(ratio, "times-floor(<=1.5)")
			b.ReportMetric(float64(median(took).Microseconds()), "median-µs")
			b.ReportMetric(float64(median(floor).Microseconds()), "floor-µs")
			b.ReportMetric(0, "ns/op") // of a whole loop: says nothing
		})
	}
}

// A start is one member's work beginning.
type start struct {
	at    time.Time
	store int
	term  *tenure.Term
	again chan<- struct{} // lets the member stand again, in the benchmarks in which it does so only after another leads
}

// A line is members that stand in one election.
type line struct {
	waiters int64
	starts  chan start
	leads   start
	looks   *pgx.Conn
}

func newLine(ctx context.Context, b *testing.B, database string, members int) *line {
	l := &line{waiters: int64(members - 1), starts: make(chan start, members), looks: connect(b, database)}
	stores := make([]*postgres.Store, processes)
	for i := range stores {
		store, err := postgres.Open(ctx, database)
		try(b, err)
		b.Cleanup(func() { try(b, store.Close()) })
		stores[i] = store
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{}, members)
	for i := range members {
		m, err := tenure.Join(ctx, stores[i%processes], tenure.Config{ID: fmt.Sprint("member-", i)})
		try(b, err)
		b.Cleanup(func() {
			if err := m.Leave(context.Background()); err != nil {
				b.Error(err)
			}
		})
		go func() {
			defer func() { done <- struct{}{} }()
			again := make(chan struct{}, 1)
			for {
				term, err := m.Campaign(ctx, "bench")
				if err != nil {
					return // it ends with the benchmark
				}
				l.starts <- start{time.Now(), i % processes, term, again}
				select {
				case <-again:
				case <-ctx.Done():
					return
				}
			}
		}()
		// The next one queues up behind this one.
		until(ctx, b, "a member's place in the queue", func() bool { return l.standing(b) == int64(i+1) })
	}
	b.Cleanup(func() {
		cancel()
		for range members {
			<-done
		}
	})
	l.leads = <-l.starts
	return l
}

// standing counts the members that lead or wait.
func (l *line) standing(b *testing.B) int64 {
	return number(b, l.looks, "SELECT (SELECT count(*) FROM tenure.waiters) + (SELECT count(*) FROM tenure.elections WHERE session IS NOT NULL)")
}

func (l *line) settle(ctx context.Context, b *testing.B) {
	time.Sleep(20 * time.Millisecond) // what the last handover set going comes to rest
	until(ctx, b, "all members to stand", func() bool { return l.standing(b) == l.waiters+1 })
}

func (l *line) handOver(ctx context.Context, b *testing.B) time.Duration {
	began := time.Now()
	if err := l.leads.term.Resign(ctx); err != nil {
		b.Fatal(err)
	}
	select {
	case next := <-l.starts:
		if next.store == l.leads.store {
			b.Fatal("the successor is in the same process: this measures no notification")
		}
		l.leads.again <- struct{}{} // as a process that is replaced, not beside the handover
		l.leads = next
		return next.at.Sub(began)
	case <-ctx.Done():
		b.Fatal("no successor")
		return 0
	}
}

// A floor measures one commit and one notification.
type floor struct {
	conn *pgx.Conn
	got  chan time.Time
	errs chan error
}

func newFloor(b *testing.B, database string) *floor {
	f := &floor{connect(b, database), make(chan time.Time, 1), make(chan error, 1)}
	_, err := f.conn.Exec(b.Context(), "CREATE TABLE floor (name text PRIMARY KEY, holder text); INSERT INTO floor VALUES ('x', 'me')")
	try(b, err)
	listening := connect(b, database)
	_, err = listening.Exec(b.Context(), "LISTEN floor")
	try(b, err)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for {
			if _, err := listening.WaitForNotification(ctx); err != nil {
				f.errs <- err
				return
			}
			f.got <- time.Now()
		}
	}()
	b.Cleanup(func() {
		cancel()
		<-f.errs //nolint:errcheck // it says that it was cancelled
	})
	return f
}

func (f *floor) once(ctx context.Context, b *testing.B) time.Duration {
	began := time.Now()
	if _, err := f.conn.Exec(ctx, "WITH r AS (UPDATE floor SET holder = holder WHERE name = $1 RETURNING 1) SELECT pg_notify('floor', 'free') FROM r", "x"); err != nil {
		b.Fatal(err)
	}
	select {
	case at := <-f.got:
		return at.Sub(began)
	case err := <-f.errs:
		f.errs <- err
		b.Fatal(err)
	case <-ctx.Done():
		b.Fatal("no notification")
	}
	return 0
}
