package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/fence"
)

func fencedPostgres(t *testing.T, config fence.Config) (*sql.DB, *fence.Guard) {
	t.Helper()
	db := postgresDatabase(t)
	config.Dialect = fence.Postgres
	guard := newGuard(t, config)
	if err := guard.CreateTable(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	execute(t, db, "CREATE TABLE written (token bigint)")
	return db, guard
}

// The core of S8: between a check and its commit the bar cannot rise, at any isolation level, by whatever form the check is made.
func TestNewerTokenWaitsForOpenWriter(t *testing.T) {
	forms := map[string]func(t *testing.T, guard *fence.Guard, tx *sql.Tx){
		"check": func(t *testing.T, guard *fence.Guard, tx *sql.Tx) {
			if err := guard.Check(t.Context(), tx, "r", 5); err != nil {
				t.Fatal(err)
			}
		},
		"clause": func(t *testing.T, guard *fence.Guard, tx *sql.Tx) {
			if n := execute(t, tx, "INSERT INTO written SELECT 5 WHERE "+guard.Clause("$1", "$2"), "r", 5); n != 1 {
				t.Fatalf("%d rows, want 1", n)
			}
		},
		"with": func(t *testing.T, guard *fence.Guard, tx *sql.Tx) {
			if n := execute(t, tx, guard.With("$1", "$2")+" INSERT INTO written SELECT 5 WHERE (SELECT token FROM tenure_bar) = $2", "r", 5); n != 1 {
				t.Fatalf("%d rows, want 1", n)
			}
		},
	}
	for form, check := range forms {
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
			for _, raised := range []string{"raised before", "raised by itself"} {
				t.Run(form+"/"+level.String()+"/"+raised, func(t *testing.T) {
					db, guard := fencedPostgres(t, fence.Config{})
					if raised == "raised before" || form == "clause" {
						if err := guard.Raise(t.Context(), db, "r", 5); err != nil {
							t.Fatal(err)
						}
					}
					old := begin(t, db, level)
					check(t, guard, old)
					newer := async(func() error { return guard.Raise(t.Context(), db, "r", 6) })
					waiting(t, db, newer, 1)
					execute(t, old, "INSERT INTO written VALUES (5)")
					commit(t, old)
					if err := result(t, newer); err != nil {
						t.Fatal(err)
					}
				})
			}
		}
	}
}

// A transaction whose snapshot is older than the new term's first write must not pass on what the snapshot says.
func TestOldSnapshotDoesNotPass(t *testing.T) {
	forms := map[string]func(guard *fence.Guard, tx *sql.Tx) (int64, error){
		"check": func(guard *fence.Guard, tx *sql.Tx) (int64, error) {
			return 1, guard.Check(context.Background(), tx, "r", 5)
		},
		"clause": func(guard *fence.Guard, tx *sql.Tx) (int64, error) {
			result, err := tx.Exec("INSERT INTO written SELECT 5 WHERE "+guard.Clause("$1", "$2"), "r", 5)
			if err != nil {
				return 0, err
			}
			return result.RowsAffected()
		},
	}
	for form, check := range forms {
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
			for _, inFlight := range []string{"committed", "in flight"} {
				t.Run(form+"/"+level.String()+"/"+inFlight, func(t *testing.T) {
					db, guard := fencedPostgres(t, fence.Config{})
					if err := guard.Raise(t.Context(), db, "r", 5); err != nil {
						t.Fatal(err)
					}
					old := begin(t, db, level)
					var n int
					if err := old.QueryRow("SELECT count(*) FROM written").Scan(&n); err != nil { // takes the snapshot
						t.Fatal(err)
					}
					newer := begin(t, db, 0)
					if err := guard.Check(t.Context(), newer, "r", 6); err != nil {
						t.Fatal(err)
					}
					if inFlight == "committed" {
						commit(t, newer)
					}
					var rows int64
					stale := async(func() (err error) { rows, err = check(guard, old); return err })
					if inFlight != "committed" {
						waiting(t, db, stale, 1)
						commit(t, newer)
					}
					err := result(t, stale)
					if err == nil && rows != 0 {
						t.Fatal("a stale write passed")
					}
					if err != nil && !errors.Is(err, fence.ErrStale) && !(level > sql.LevelReadCommitted && strings.Contains(err.Error(), "40001")) {
						t.Fatalf("error %v, want a refusal or a serialization failure", err)
					}
				})
			}
		}
	}
}

func TestAbortedRaiseLetsTheOldTokenPass(t *testing.T) {
	db, guard := fencedPostgres(t, fence.Config{})
	if err := guard.Raise(t.Context(), db, "r", 5); err != nil {
		t.Fatal(err)
	}
	newer := begin(t, db, 0)
	if err := guard.Check(t.Context(), newer, "r", 6); err != nil {
		t.Fatal(err)
	}
	old := async(func() error { return guard.Raise(t.Context(), db, "r", 5) })
	waiting(t, db, old, 1)
	newer.Rollback()
	if err := result(t, old); err != nil {
		t.Fatal(err)
	}
}

// Transactions of one term run beside each other once the bar is known.
func TestEqualTokensDoNotWait(t *testing.T) {
	db, guard := fencedPostgres(t, fence.Config{})
	if err := guard.Raise(t.Context(), db, "r", 5); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 10 {
		tx := begin(t, db, 0)
		if err := guard.Check(ctx, tx, "r", 5); err != nil {
			t.Fatal(err)
		}
		if n := execute(t, tx, "INSERT INTO written SELECT 5 WHERE "+guard.Clause("$1", "$2"), "r", 5); n != 1 {
			t.Fatal("the clause refused the current token")
		}
	}
}

// A stale leader that always has a transaction open would starve its successor if row locks were all there is.
func TestNewerTokenIsNotOvertaken(t *testing.T) {
	for _, form := range []string{"check", "clause"} {
		t.Run(form, func(t *testing.T) {
			db, guard := fencedPostgres(t, fence.Config{})
			if err := guard.Raise(t.Context(), db, "r", 5); err != nil {
				t.Fatal(err)
			}
			first := begin(t, db, 0)
			if err := guard.Check(t.Context(), first, "r", 5); err != nil {
				t.Fatal(err)
			}
			newer := async(func() error { return guard.Raise(t.Context(), db, "r", 6) })
			waiting(t, db, newer, 1)
			second := begin(t, db, 0)
			var rows int64
			late := async(func() error {
				if form == "check" {
					return guard.Check(t.Context(), second, "r", 5)
				}
				result, err := second.Exec("INSERT INTO written SELECT 5 WHERE "+guard.Clause("$1", "$2"), "r", 5)
				if err == nil {
					rows, err = result.RowsAffected()
				}
				return err
			})
			waiting(t, db, late, 2)
			commit(t, first)
			if err := result(t, newer); err != nil {
				t.Fatal(err)
			}
			if err := result(t, late); form == "check" && !errors.Is(err, fence.ErrStale) || form == "clause" && (err != nil || rows != 0) {
				t.Fatalf("%d rows, error %v, want the late transaction refused", rows, err)
			}
		})
	}
}

// A caller that ignores the refusal cannot commit.
func TestRefusalAborts(t *testing.T) {
	db, guard := fencedPostgres(t, fence.Config{})
	if err := guard.Raise(t.Context(), db, "r", 5); err != nil {
		t.Fatal(err)
	}
	tx := begin(t, db, 0)
	execute(t, tx, "INSERT INTO written VALUES (4)")
	_ = guard.Check(t.Context(), tx, "r", 4)
	if _, err := tx.Exec("INSERT INTO written VALUES (4)"); err == nil {
		t.Error("the transaction goes on after a refusal")
	}
	_ = tx.Commit()
	if n := number(t, db, "SELECT count(*) FROM written"); n != 0 {
		t.Errorf("%d stale writes were committed", n)
	}
}

func TestWithRaisesAndRefuses(t *testing.T) {
	db, guard := fencedPostgres(t, fence.Config{})
	insert := guard.With("$1", "$2") + " INSERT INTO written SELECT $2 WHERE (SELECT token FROM tenure_bar) = $2"
	for _, step := range []struct{ token, seen uint64 }{{5, 0}, {5, 0}, {6, 0}, {5, 6}} {
		_, err := db.Exec(insert, "r", int64(step.token))
		err = guard.Explain(err, "r", step.token)
		if step.seen != 0 {
			wantStale(t, err, fence.StaleError{Resource: "r", Token: step.token, Seen: step.seen})
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n := number(t, db, "SELECT count(*) FROM written"); n != 3 {
		t.Fatalf("%d writes, want 3", n)
	}
}

// The clause's answer must also hold where the row to be written was locked meanwhile and the statement re-checks its conditions.
func TestClauseOnContendedRow(t *testing.T) {
	db, guard := fencedPostgres(t, fence.Config{})
	execute(t, db, "INSERT INTO written VALUES (0)")
	if err := guard.Raise(t.Context(), db, "r", 5); err != nil {
		t.Fatal(err)
	}
	update := "UPDATE written SET token = token + 1 WHERE " + guard.Clause("$1", "$2")
	first := begin(t, db, 0)
	if n := execute(t, first, update, "r", 5); n != 1 {
		t.Fatal("refused")
	}
	var rows int64
	second := async(func() error {
		result, err := db.Exec(update, "r", 5)
		if err == nil {
			rows, err = result.RowsAffected()
		}
		return err
	})
	waiting(t, db, second, 1)
	newer := async(func() error { return guard.Raise(t.Context(), db, "r", 6) })
	waiting(t, db, newer, 2)
	commit(t, first)
	if err := result(t, second); err != nil || rows != 1 {
		t.Fatalf("%d rows, %v: the second writer's check came before the newer token", rows, err)
	}
	if err := result(t, newer); err != nil {
		t.Fatal(err)
	}
	if n := number(t, db, "SELECT token FROM written"); n != 2 {
		t.Fatalf("%d, want 2", n)
	}
}

// A leader that was stopped in the middle of a transaction holds its successor up for the idle timeout, not for ever.
func TestIdleTransactionIsEnded(t *testing.T) {
	db, guard := fencedPostgres(t, fence.Config{IdleTimeout: 200 * time.Millisecond})
	stopped := begin(t, db, 0)
	if err := guard.Check(t.Context(), stopped, "r", 5); err != nil {
		t.Fatal(err)
	}
	execute(t, stopped, "INSERT INTO written VALUES (5)")
	newer := async(func() error { return guard.Raise(t.Context(), db, "r", 6) })
	if err := result(t, newer); err != nil {
		t.Fatal(err)
	}
	if err := stopped.Commit(); err == nil {
		t.Error("the stopped transaction was committed")
	}
	if n := number(t, db, "SELECT count(*) FROM written"); n != 0 {
		t.Errorf("%d writes of the stopped transaction", n)
	}
}

func TestIdleTimeoutIsOnlyLowered(t *testing.T) {
	db, guard := fencedPostgres(t, fence.Config{IdleTimeout: 30 * time.Second})
	lenient := newGuard(t, fence.Config{Dialect: fence.Postgres, IdleTimeout: -1})
	for _, c := range []struct {
		guard       *fence.Guard
		before, now string
	}{{guard, "0", "30s"}, {guard, "7s", "7s"}, {guard, "30s", "30s"}, {guard, "2h", "30s"}, {lenient, "0", "0"}, {lenient, "2h", "2h"}} {
		connection, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		execute(t, connection, "SET idle_in_transaction_session_timeout = '"+c.before+"'")
		execute(t, connection, "BEGIN")
		if err := c.guard.Check(t.Context(), connection, "r", 5); err != nil {
			t.Fatal(err)
		}
		show := func() (setting string) {
			if err := connection.QueryRowContext(t.Context(), "SHOW idle_in_transaction_session_timeout").Scan(&setting); err != nil {
				t.Fatal(err)
			}
			return setting
		}
		if got := show(); got != c.now {
			t.Errorf("server's setting %s: %s after a check, want %s", c.before, got, c.now)
		}
		execute(t, connection, "COMMIT")
		if got := show(); got != c.before {
			t.Errorf("server's setting %s: %s after the transaction", c.before, got)
		}
		execute(t, connection, "RESET ALL")
		connection.Close()
	}
}

func TestLeastPrivileges(t *testing.T) {
	db, guard := fencedPostgres(t, fence.Config{})
	connection, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	role := fmt.Sprintf("fence_%d", rand.Uint64()) // roles belong to the server, not to the database
	execute(t, db, "CREATE ROLE "+role)
	t.Cleanup(func() {
		connection.Close()
		for _, statement := range []string{"DROP OWNED BY " + role, "DROP ROLE " + role} {
			if _, err := db.ExecContext(context.Background(), statement); err != nil {
				t.Error(err)
			}
		}
	})
	check := func() error {
		execute(t, connection, "RESET ROLE")
		execute(t, connection, "SET ROLE "+role)
		execute(t, connection, "BEGIN")
		defer execute(t, connection, "ROLLBACK")
		return guard.Check(t.Context(), connection, "r", 5)
	}
	for _, grant := range []string{"USAGE ON SCHEMA tenure", "SELECT ON tenure.fence", "INSERT ON tenure.fence", "UPDATE ON tenure.fence"} {
		err := check()
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), `SELECT, INSERT, UPDATE ON "tenure".fence`) {
			t.Fatalf("without %s: %v, want ErrInvalid that names the grants", grant, err)
		}
		execute(t, db, "GRANT "+grant+" TO "+role)
	}
	if err := check(); err != nil {
		t.Fatalf("with the documented privileges: %v", err)
	}
	execute(t, connection, "RESET ROLE")
}

// Writers of changing terms hammer one resource; the log of what they committed must never go back.
func TestManyWriters(t *testing.T) {
	db, guard := fencedPostgres(t, fence.Config{})
	execute(t, db, "CREATE TABLE log (at bigint GENERATED ALWAYS AS IDENTITY, token bigint)")
	db.SetMaxOpenConns(12)
	var term atomic.Int64
	term.Store(1)
	const writers, rounds = 8, 60
	done := make(chan error, writers)
	for writer := range writers {
		go func() {
			done <- func() error {
				for round := range rounds {
					token := uint64(term.Load())
					if (writer+round)%7 == 0 {
						token = uint64(term.Add(1))
					}
					level := []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}[(writer+round)%3]
					err := guard.InTx(t.Context(), db, &sql.TxOptions{Isolation: level}, "r", token, func(tx *sql.Tx) error {
						// The number is drawn after the check: were it atomic with the commit only by luck, numbers and tokens would cross.
						_, err := tx.Exec("INSERT INTO log (token) VALUES ($1)", int64(token))
						return err
					})
					if err != nil && !errors.Is(err, fence.ErrStale) && !strings.Contains(err.Error(), "40001") {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range writers {
		if err := result(t, done); err != nil {
			t.Fatal(err)
		}
	}
	crossed := number(t, db, "SELECT count(*) FROM (SELECT token < max(token) OVER (ORDER BY at) AS back FROM log) AS l WHERE back")
	written := number(t, db, "SELECT count(*) FROM log")
	if crossed != 0 || written < rounds {
		t.Fatalf("%d of %d writes came after one of a newer term", crossed, written)
	}
}
