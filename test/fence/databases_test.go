package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/gotenure/tenure/fence"
)

// patience bounds the wait for what must happen at once on an idle machine.
const patience = 30 * time.Second

// postgresDatabase returns a new database, which the test's end drops.
func postgresDatabase(t testing.TB) *sql.DB {
	t.Helper()
	return openPostgres(t, postgresURL(t))
}

func postgresURL(t testing.TB) string {
	t.Helper()
	admin := os.Getenv("TENURE_TEST_POSTGRES")
	if admin == "" {
		t.Skip("TENURE_TEST_POSTGRES is not set: it is the URL of a PostgreSQL server as a superuser, for example postgres://postgres@127.0.0.1:5432/postgres")
	}
	location, err := url.Parse(admin)
	if err != nil {
		t.Fatal("TENURE_TEST_POSTGRES is not a URL")
	}
	server := openPostgres(t, admin)
	name := fmt.Sprintf("fence_%d", rand.Uint64())
	if _, err := server.Exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := server.Exec("DROP DATABASE " + name + " WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	location.Path = "/" + name
	return location.String()
}

func openPostgres(t testing.TB, location string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", location)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// sqliteDatabase returns a new database in WAL mode.
func sqliteDatabase(t testing.TB) *sql.DB {
	t.Helper()
	return openSQLite(t, filepath.Join(t.TempDir(), "file.db"), 20*time.Second)
}

func openSQLite(t testing.TB, path string, busy time.Duration) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite3", fmt.Sprintf("file:%s?_pragma=busy_timeout(%d)&_pragma=journal_mode(wal)&_pragma=synchronous(normal)", path, busy.Milliseconds()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// onEach runs a test against each dialect, with the bars' table and a table of what was written.
func onEach(t *testing.T, test func(t *testing.T, db *sql.DB, guard *fence.Guard)) {
	for _, database := range []struct {
		dialect fence.Dialect
		open    func(testing.TB) *sql.DB
	}{{fence.Postgres, postgresDatabase}, {fence.SQLite, sqliteDatabase}} {
		t.Run(string(database.dialect), func(t *testing.T) {
			db := database.open(t)
			guard := newGuard(t, fence.Config{Dialect: database.dialect})
			if err := guard.CreateTable(t.Context(), db); err != nil {
				t.Fatal(err)
			}
			execute(t, db, "CREATE TABLE written (token bigint)")
			test(t, db, guard)
		})
	}
}

func newGuard(t testing.TB, config fence.Config) *fence.Guard {
	t.Helper()
	guard, err := fence.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return guard
}

type executor interface {
	ExecContext(ctx context.Context, query string, arguments ...any) (sql.Result, error)
}

func execute(t testing.TB, db executor, query string, arguments ...any) int64 {
	t.Helper()
	result, err := db.ExecContext(t.Context(), query, arguments...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	rows, err := result.RowsAffected()
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func begin(t testing.TB, db *sql.DB, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	return tx
}

func commit(t testing.TB, tx *sql.Tx) {
	t.Helper()
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

func number(t testing.TB, db *sql.DB, query string, arguments ...any) int64 {
	t.Helper()
	var n sql.NullInt64
	if err := db.QueryRowContext(t.Context(), query, arguments...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n.Int64
}

func wantStale(t testing.TB, err error, want fence.StaleError) {
	t.Helper()
	var stale *fence.StaleError
	if !errors.As(err, &stale) || !errors.Is(err, fence.ErrStale) {
		t.Fatalf("error %v, want a StaleError", err)
	}
	if *stale != want {
		t.Fatalf("error %+v, want %+v", *stale, want)
	}
}

// async runs a call of which the test wants to know whether it waits.
func async(call func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	return done
}

func result(t testing.TB, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatal("the call still waits")
		return nil
	}
}

// waiting returns once so many of the database's connections wait for a lock. It fails when the call is over before.
func waiting(t testing.TB, db *sql.DB, done <-chan error, want int64) {
	t.Helper()
	const query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
	for deadline := time.Now().Add(patience); number(t, db, query) < want; {
		select {
		case err := <-done:
			t.Fatalf("the call did not wait; it returned %v", err)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("the call neither waits for a lock nor returns")
		}
		time.Sleep(2 * time.Millisecond) // between two looks at the server
	}
}
