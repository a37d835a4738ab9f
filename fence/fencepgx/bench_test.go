package fencepgx_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gotenure/tenure/fence"
	"github.com/gotenure/tenure/fence/fencepgx"
)

const update = "UPDATE accounts SET balance = balance + 1 WHERE id = $1"

// A write is one UPDATE of one row on a connection, committed. It returns the rows it changed.
type write func(ctx context.Context, connection *pgxpool.Conn, id int) (int64, error)

// BenchmarkFencedUpdate measures each form of the guard beside the same UPDATE without it, in turns. The metric "ratio" is that of the medians.
func BenchmarkFencedUpdate(b *testing.B) {
	pool, guard := open(b, fence.Config{})
	const token = int64(5)
	for _, statement := range []string{
		"CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50)",
		"INSERT INTO accounts SELECT n, 0 FROM generate_series(1, 1000) AS n",
		"CREATE TABLE tenure.sessions (id text PRIMARY KEY, expires_at bigint NOT NULL)",
		"CREATE TABLE tenure.elections (name text PRIMARY KEY, token bigint NOT NULL, session text)",
		"INSERT INTO tenure.sessions SELECT n::text, (extract(epoch FROM now()) * 1000000)::bigint + 36000000000 FROM generate_series(1, 1000) AS n",
		"INSERT INTO tenure.elections SELECT n::text, 5, n::text FROM generate_series(1, 1000) AS n",
		"INSERT INTO tenure.fence SELECT n::text, 5 FROM generate_series(1, 1000) AS n",
		"VACUUM ANALYZE",
	} {
		if _, err := pool.Exec(b.Context(), statement); err != nil {
			b.Fatal(err)
		}
	}
	clause := update + " AND " + guard.Fence().Clause("$2", "$3")
	termClause := update + " AND " + guard.Fence().TermClause("$2", "$3")
	with := guard.Fence().With("$2", "$3") + " " + update + " AND (SELECT token FROM tenure_bar) = $3"

	statement := func(sql string, arguments ...any) write {
		return func(ctx context.Context, connection *pgxpool.Conn, id int) (int64, error) {
			tag, err := connection.Exec(ctx, sql, append([]any{id}, arguments...)...)
			return tag.RowsAffected(), err
		}
	}
	transaction := func(check func(ctx context.Context, tx pgx.Tx) error, sql string, arguments ...any) write {
		return func(ctx context.Context, connection *pgxpool.Conn, id int) (rows int64, err error) {
			err = pgx.BeginFunc(ctx, connection, func(tx pgx.Tx) error {
				if check != nil {
					if err := check(ctx, tx); err != nil {
						return err
					}
				}
				tag, err := tx.Exec(ctx, sql, append([]any{id}, arguments...)...)
				rows = tag.RowsAffected()
				return err
			})
			return rows, err
		}
	}
	// One batch with what opens the transaction, the check and the UPDATE; then, where begin is set, what the caller decides, and COMMIT.
	batch := func(begin bool, queue func(*pgx.Batch) error) write {
		return func(ctx context.Context, connection *pgxpool.Conn, id int) (rows int64, err error) {
			batch := &pgx.Batch{}
			if begin {
				batch.Queue("BEGIN")
			}
			if queue != nil {
				if err := queue(batch); err != nil {
					return 0, err
				}
			}
			batch.Queue(update, id)
			batch.QueuedQueries[batch.Len()-1].Exec(func(tag pgconn.CommandTag) error { rows = tag.RowsAffected(); return nil })
			if err := connection.SendBatch(ctx, batch).Close(); err != nil {
				return 0, err
			}
			if begin {
				_, err = connection.Exec(ctx, "COMMIT")
			}
			return rows, err
		}
	}
	check := func(ctx context.Context, tx pgx.Tx) error { return guard.Check(ctx, tx, "7", uint64(token)) }
	checkTerm := func(ctx context.Context, tx pgx.Tx) error { return guard.CheckTerm(ctx, tx, "7", uint64(token)) }
	queue := func(batch *pgx.Batch) error { return guard.Queue(batch, "7", uint64(token)) }
	queueTerm := func(batch *pgx.Batch) error { return guard.QueueTerm(batch, "7", uint64(token)) }

	for _, pair := range []struct {
		name            string
		unfenced, other write
	}{
		{"statement/Clause", statement(update), statement(clause, "7", token)},
		{"statement/TermClause", statement(update), statement(termClause, "7", token)},
		{"statement/With", statement(update), statement(with, "7", token)},
		{"statement/Queue", statement(update), batch(false, queue)},
		{"transaction/Clause", transaction(nil, update), transaction(nil, clause, "7", token)},
		{"transaction/TermClause", transaction(nil, update), transaction(nil, termClause, "7", token)},
		{"transaction/Queue", transaction(nil, update), batch(true, queue)},
		{"transaction/QueueTerm", transaction(nil, update), batch(true, queueTerm)},
		{"transaction/Check", transaction(nil, update), transaction(check, update)},
		{"transaction/CheckTerm", transaction(nil, update), transaction(checkTerm, update)},
		{"pipelined transaction/Queue", batch(true, nil), batch(true, queue)},
		{"pipelined transaction/QueueTerm", batch(true, nil), batch(true, queueTerm)},
	} {
		b.Run(pair.name, func(b *testing.B) { compare(b, pool, pair.unfenced, pair.other) })
	}
}

func compare(b *testing.B, pool *pgxpool.Pool, unfenced, fenced write) {
	connection, err := pool.Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer connection.Release()
	id := 0
	timed := func(w write) time.Duration {
		id = id%1000 + 1
		start := time.Now()
		rows, err := w(b.Context(), connection, id)
		elapsed := time.Since(start)
		if err != nil || rows != 1 {
			b.Fatalf("%d rows, %v", rows, err)
		}
		return elapsed
	}
	for range 20 { // statements get prepared, and planned for good
		timed(unfenced)
		timed(fenced)
	}
	var without, with []time.Duration
	b.ResetTimer()
	for i := range b.N {
		// Whoever comes second finds warmer caches.
		if i%2 == 0 {
			without = append(without, timed(unfenced))
			with = append(with, timed(fenced))
		} else {
			with = append(with, timed(fenced))
			without = append(without, timed(unfenced))
		}
	}
	b.StopTimer()
	median := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)/2].Nanoseconds()) / 1000
	}
	b.ReportMetric(0, "ns/op") // of no use: it is the sum of both
	b.ReportMetric(median(without), "µs-unfenced")
	b.ReportMetric(median(with), "µs-fenced")
	b.ReportMetric(median(with)/median(without), "ratio")
}

var _ fencepgx.Beginner = (*pgxpool.Conn)(nil)
