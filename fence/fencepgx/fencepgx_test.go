package fencepgx_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/fence"
	"github.com/gotenure/tenure/fence/fencepgx"
)

// patience bounds the wait for what must happen at once on an idle machine.
const patience = 30 * time.Second

// open returns a pool on a new database, which the test's end drops, with the bars' table and a table of what was written.
func open(t testing.TB, config fence.Config) (*pgxpool.Pool, *fencepgx.Guard) {
	t.Helper()
	admin := os.Getenv("TENURE_TEST_POSTGRES")
	if admin == "" {
		t.Skip("TENURE_TEST_POSTGRES is not set: it is the URL of a PostgreSQL server as a superuser, for example postgres://postgres@127.0.0.1:5432/postgres")
	}
	server, err := pgx.Connect(t.Context(), admin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close(context.Background()) })
	name := fmt.Sprintf("fencepgx_%d", rand.Uint64())
	if _, err := server.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := server.Exec(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	settings, err := pgxpool.ParseConfig(admin)
	if err != nil {
		t.Fatal("TENURE_TEST_POSTGRES is not a URL")
	}
	settings.ConnConfig.Database = name
	settings.MaxConns = 12
	pool, err := pgxpool.NewWithConfig(t.Context(), settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	guard, err := fencepgx.New(config)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if err := guard.CreateTable(t.Context(), pool); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if _, err := pool.Exec(t.Context(), "CREATE TABLE written (token bigint)"); err != nil {
		t.Fatal(err)
	}
	return pool, guard
}

func written(t testing.TB, pool *pgxpool.Pool) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM written").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func wantStale(t testing.TB, err error, want fence.StaleError) {
	t.Helper()
	var stale *fence.StaleError
	if !errors.As(err, &stale) || !errors.Is(err, fence.ErrStale) || *stale != want {
		t.Fatalf("error %v, want %+v", err, want)
	}
}

// forms are the ways to write with a token; each writes one row or returns why not.
var forms = map[string]func(ctx context.Context, pool *pgxpool.Pool, guard *fencepgx.Guard, token uint64) error{
	"InTx": func(ctx context.Context, pool *pgxpool.Pool, guard *fencepgx.Guard, token uint64) error {
		return guard.InTx(ctx, pool, "r", token, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO written VALUES ($1)", int64(token))
			return err
		})
	},
	"Queue, implicit transaction": func(ctx context.Context, pool *pgxpool.Pool, guard *fencepgx.Guard, token uint64) error {
		batch := &pgx.Batch{}
		if err := guard.Queue(batch, "r", token); err != nil {
			return err
		}
		batch.Queue("INSERT INTO written VALUES ($1)", int64(token))
		return guard.Fence().Explain(pool.SendBatch(ctx, batch).Close(), "r", token)
	},
	"Queue, BEGIN and COMMIT in the batch": func(ctx context.Context, pool *pgxpool.Pool, guard *fencepgx.Guard, token uint64) error {
		batch := &pgx.Batch{}
		batch.Queue("BEGIN")
		if err := guard.Queue(batch, "r", token); err != nil {
			return err
		}
		batch.Queue("INSERT INTO written VALUES ($1)", int64(token))
		batch.Queue("COMMIT")
		return pool.AcquireFunc(ctx, func(connection *pgxpool.Conn) error {
			err := connection.SendBatch(ctx, batch).Close()
			if err != nil {
				_, _ = connection.Exec(ctx, "ROLLBACK")
			}
			return guard.Fence().Explain(err, "r", token)
		})
	},
	"With": func(ctx context.Context, pool *pgxpool.Pool, guard *fencepgx.Guard, token uint64) error {
		_, err := pool.Exec(ctx, guard.Fence().With("$1", "$2")+" INSERT INTO written SELECT $2 WHERE (SELECT token FROM tenure_bar) = $2", "r", int64(token))
		return guard.Fence().Explain(err, "r", token)
	},
	"Raise and Clause": func(ctx context.Context, pool *pgxpool.Pool, guard *fencepgx.Guard, token uint64) error {
		insert := "INSERT INTO written SELECT $2 WHERE " + guard.Fence().Clause("$1", "$2")
		tag, err := pool.Exec(ctx, insert, "r", int64(token))
		if err != nil || tag.RowsAffected() == 1 {
			return err
		}
		if err := guard.Raise(ctx, pool, "r", token); err != nil {
			return err
		}
		tag, err = pool.Exec(ctx, insert, "r", int64(token))
		if err == nil && tag.RowsAffected() != 1 {
			err = fmt.Errorf("%d rows after Raise", tag.RowsAffected())
		}
		return err
	},
}

func TestForms(t *testing.T) {
	for name, write := range forms {
		t.Run(name, func(t *testing.T) {
			pool, guard := open(t, fence.Config{})
			rows := 0
			for _, step := range []struct{ token, seen uint64 }{{5, 0}, {5, 0}, {4, 5}, {6, 0}, {5, 6}, {6, 0}} {
				err := write(t.Context(), pool, guard, step.token)
				if step.seen != 0 {
					wantStale(t, err, fence.StaleError{Resource: "r", Token: step.token, Seen: step.seen})
				} else if rows++; err != nil {
					t.Fatalf("token %d: %v", step.token, err)
				}
				if n := written(t, pool); n != rows {
					t.Fatalf("token %d: %d rows, want %d", step.token, n, rows)
				}
			}
			if err := write(t.Context(), pool, guard, 1<<63); !errors.Is(err, driver.ErrInvalid) && name != "With" && name != "Raise and Clause" {
				t.Errorf("token 1<<63: %v, want ErrInvalid", err)
			}
		})
	}
}

func TestTerm(t *testing.T) {
	pool, guard := open(t, fence.Config{})
	term := func(token uint64) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return guard.CheckTerm(t.Context(), tx, "e", token) })
	}
	queued := func(token uint64) error {
		batch := &pgx.Batch{}
		if err := guard.QueueTerm(batch, "e", token); err != nil {
			return err
		}
		batch.Queue("INSERT INTO written VALUES ($1)", int64(token))
		return guard.Fence().ExplainTerm(pool.SendBatch(t.Context(), batch).Close(), "e", token)
	}
	if err := term(5); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "tenure store init") {
		t.Fatalf("without the elections' tables: %v", err)
	}
	for _, statement := range []string{
		"CREATE TABLE tenure.sessions (id text PRIMARY KEY, expires_at bigint NOT NULL)",
		"CREATE TABLE tenure.elections (name text PRIMARY KEY, token bigint NOT NULL, session text)",
		"INSERT INTO tenure.sessions SELECT 's', (extract(epoch FROM now()) * 1000000)::bigint + 3600000000",
		"INSERT INTO tenure.elections VALUES ('e', 5, 's')",
	} {
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	for name, check := range map[string]func(uint64) error{"CheckTerm": term, "QueueTerm": queued} {
		if err := check(5); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		wantStale(t, check(4), fence.StaleError{Election: "e", Token: 4, Seen: 5})
		if err := check(0); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: token 0: %v", name, err)
		}
	}
	if n := written(t, pool); n != 1 {
		t.Errorf("%d rows, want the current term's one", n)
	}
}

func TestNew(t *testing.T) {
	if _, err := fencepgx.New(fence.Config{Dialect: fence.SQLite}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("pgx with SQLite: %v, want ErrInvalid", err)
	}
}

// held starts a Hold and returns when its work has started. The work ends when end is closed or its context is done.
func held(t *testing.T, pool *pgxpool.Pool, guard *fencepgx.Guard, token uint64) (work context.Context, end chan struct{}, done chan error) {
	t.Helper()
	end, done = make(chan struct{}), make(chan error, 1)
	started := make(chan context.Context, 1)
	go func() {
		done <- guard.Hold(t.Context(), pool, "r", token, func(ctx context.Context) error {
			started <- ctx
			select {
			case <-end:
			case <-ctx.Done():
			}
			return nil
		})
	}()
	select {
	case work = <-started:
	case err := <-done:
		t.Fatalf("Hold ended before its work started: %v", err)
	case <-time.After(patience):
		t.Fatal("Hold does not start")
	}
	return work, end, done
}

func result(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatal("the call still waits")
		return nil
	}
}

func waitBlocked(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	const query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
	for deadline := time.Now().Add(patience); ; {
		var n int
		if err := pool.QueryRow(t.Context(), query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("nobody waits for a lock")
		}
		time.Sleep(2 * time.Millisecond) // between two looks at the server
	}
}

// While work runs, equal tokens run beside it, lower ones are refused at once and a higher one waits, also for longer than the idle timeout.
func TestHold(t *testing.T) {
	const idle = time.Second
	pool, guard := open(t, fence.Config{IdleTimeout: idle})
	began := time.Now()
	_, end, done := held(t, pool, guard, 5)
	_, endTwo, doneTwo := held(t, pool, guard, 5)
	wantStale(t, guard.Hold(t.Context(), pool, "r", 4, func(context.Context) error { t.Error("stale work ran"); return nil }),
		fence.StaleError{Resource: "r", Token: 4, Seen: 5})
	newer := make(chan error, 1)
	go func() { newer <- guard.Raise(t.Context(), pool, "r", 6) }()
	waitBlocked(t, pool)
	time.Sleep(time.Until(began.Add(2 * idle))) // the point is that the timeout passes
	select {
	case err := <-newer:
		t.Fatalf("the newer token did not wait: %v", err)
	default:
	}
	close(end)
	close(endTwo)
	for _, done := range []chan error{done, doneTwo, newer} {
		if err := result(t, done); err != nil {
			t.Fatal(err)
		}
	}
}

// When the server ends the transaction, work is told, and the loss is not reported as success.
func TestHoldIsLost(t *testing.T) {
	pool, guard := open(t, fence.Config{IdleTimeout: 2 * time.Second})
	work, _, done := held(t, pool, guard, 5)
	const terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
	if _, err := pool.Exec(t.Context(), terminate); err != nil {
		t.Fatal(err)
	}
	if err := result(t, done); !errors.Is(err, fencepgx.ErrHoldLost) {
		t.Fatalf("error %v, want ErrHoldLost", err)
	}
	if cause := context.Cause(work); !errors.Is(cause, fencepgx.ErrHoldLost) {
		t.Fatalf("cause %v, want ErrHoldLost", cause)
	}
	if err := guard.Raise(t.Context(), pool, "r", 4); !errors.Is(err, fence.ErrStale) {
		t.Fatalf("%v: the bar went with the transaction", err)
	}
}

func TestHoldReturnsWorkError(t *testing.T) {
	pool, guard := open(t, fence.Config{})
	broken := errors.New("work failed")
	if err := guard.Hold(t.Context(), pool, "r", 5, func(context.Context) error { return broken }); err != broken { //nolint:errorlint // the very error
		t.Errorf("error %v, want work's own", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := guard.Hold(ctx, pool, "r", 5, func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		return context.Cause(ctx)
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, fencepgx.ErrHoldLost) {
		t.Errorf("error %v, want the caller's cancellation", err)
	}
	if err := guard.Raise(t.Context(), pool, "r", 6); err != nil { // nothing is left locked
		t.Error(err)
	}
	lenient, err := fencepgx.New(fence.Config{IdleTimeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := lenient.Hold(t.Context(), pool, "r", 6, func(context.Context) error { return nil }); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("without an idle timeout: %v, want ErrInvalid", err)
	}
}

// A process that is cut off from the server holds its successor up for the idle timeout, not for ever.
func TestHoldOfSilentProcessLapses(t *testing.T) {
	pool, guard := open(t, fence.Config{IdleTimeout: 300 * time.Millisecond})
	tx, err := pool.Begin(t.Context()) // what Hold has open, without its questions
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if err := guard.Check(t.Context(), tx, "r", 5); err != nil {
		t.Fatal(err)
	}
	newer := make(chan error, 1)
	go func() { newer <- guard.Raise(t.Context(), pool, "r", 6) }()
	if err := result(t, newer); err != nil {
		t.Fatal(err)
	}
}

// CreateTable in a transaction creates when that commits.
func TestCreateTableInATransaction(t *testing.T) {
	pool, _ := open(t, fence.Config{})
	other, err := fencepgx.New(fence.Config{Namespace: "other"})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := other.CreateTable(t.Context(), tx); err != nil {
		t.Error(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	if err := other.Raise(t.Context(), pool, "r", 1); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("%v; want ErrInvalid, for the table was rolled back", err)
	}
}
