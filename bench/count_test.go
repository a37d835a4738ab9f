package bench_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gotenure/tenure/store/sqlite"
)

// postgresStatements counts by pg_stat_statements, at the server.
type postgresStatements struct{ conn *pgx.Conn }

func newPostgresStatements(b *testing.B, url string) postgresStatements {
	conn := connect(b, url)
	_, err := conn.Exec(b.Context(), "CREATE EXTENSION pg_stat_statements")
	try(b, err)
	return postgresStatements{conn}
}

func (p postgresStatements) standing(b *testing.B, held bool) int64 {
	if number(b, p.conn, "SELECT count(*) FROM pg_tables WHERE schemaname = 'tenure' AND tablename IN ('elections', 'waiters')") < 2 {
		return 0 // the child makes them
	}
	if held {
		return number(b, p.conn, "SELECT count(*) FROM tenure.elections WHERE session IS NOT NULL")
	}
	return number(b, p.conn, "SELECT count(*) FROM tenure.waiters")
}

func (p postgresStatements) during(b *testing.B, f func()) (renewals, statements int64) {
	_, err := p.conn.Exec(b.Context(), "SELECT pg_stat_statements_reset()")
	try(b, err)
	f()
	const ours = " FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'"
	renewals = number(b, p.conn, "SELECT coalesce(sum(calls), 0)::bigint"+ours+" AND query ILIKE 'UPDATE %sessions%'")
	return renewals, number(b, p.conn, "SELECT coalesce(sum(calls), 0)::bigint"+ours)
}

// sqliteCommits counts commits by looking often at the file's version, which every commit of another connection changes.
type sqliteCommits struct{ db *sql.DB }

func newSQLiteCommits(ctx context.Context, b *testing.B, path string) sqliteCommits {
	store, err := sqlite.New(ctx, path, sqlite.Options{}) // makes the tables
	try(b, err)
	try(b, store.Close())
	db, err := sql.Open("sqlite3", "file:"+path+"?mode=ro&_pragma=busy_timeout(10000)")
	try(b, err)
	db.SetMaxOpenConns(1) // the version is a connection's own number
	b.Cleanup(func() { _ = db.Close() })
	return sqliteCommits{db}
}

func (s sqliteCommits) number(b *testing.B, query string) int64 {
	b.Helper()
	var n int64
	try(b, s.db.QueryRow(query).Scan(&n))
	return n
}

func (s sqliteCommits) standing(b *testing.B, held bool) int64 {
	if held {
		return s.number(b, "SELECT count(*) FROM tenure_elections WHERE session IS NOT NULL")
	}
	return s.number(b, "SELECT count(*) FROM tenure_waiters")
}

func (s sqliteCommits) during(b *testing.B, f func()) (renewals, statements int64) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	last := s.number(b, "PRAGMA data_version")
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return renewals, 0
		case <-tick.C:
			if now := s.number(b, "PRAGMA data_version"); now != last {
				last = now
				renewals++
			}
		}
	}
}
