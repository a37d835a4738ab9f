package fence_test

import (
	"database/sql"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/fence"
)

func TestCheckRefusesLowerTokensForEver(t *testing.T) {
	onEach(t, func(t *testing.T, db *sql.DB, guard *fence.Guard) {
		for _, step := range []struct{ token, seen uint64 }{{5, 0}, {5, 0}, {4, 5}, {5, 0}, {9, 0}, {5, 9}, {8, 9}, {9, 0}, {math.MaxInt64, 0}, {9, math.MaxInt64}} {
			err := guard.InTx(t.Context(), db, nil, "accounts", step.token, func(tx *sql.Tx) error {
				execute(t, tx, "INSERT INTO written VALUES ($1)", int64(step.token))
				return nil
			})
			if step.seen != 0 {
				wantStale(t, err, fence.StaleError{Resource: "accounts", Token: step.token, Seen: step.seen})
			} else if err != nil {
				t.Fatalf("token %d: %v", step.token, err)
			}
		}
		if n := number(t, db, "SELECT count(*) FROM written"); n != 6 {
			t.Fatalf("%d writes were committed, want 6", n)
		}
		if err := guard.Raise(t.Context(), db, "another resource", 1); err != nil {
			t.Fatalf("resources share a bar: %v", err)
		}
	})
}

func TestRollbackDoesNotRaise(t *testing.T) {
	onEach(t, func(t *testing.T, db *sql.DB, guard *fence.Guard) {
		if err := guard.Raise(t.Context(), db, "r", 5); err != nil {
			t.Fatal(err)
		}
		tx := begin(t, db, 0)
		if err := guard.Check(t.Context(), tx, "r", 9); err != nil {
			t.Fatal(err)
		}
		tx.Rollback()

		tx = begin(t, db, 0)
		execute(t, tx, "SAVEPOINT half")
		if err := guard.Check(t.Context(), tx, "r", 8); err != nil {
			t.Fatal(err)
		}
		execute(t, tx, "ROLLBACK TO SAVEPOINT half")
		commit(t, tx)

		tx = begin(t, db, 0)
		if err := guard.Check(t.Context(), tx, "r", 5); err != nil {
			t.Fatalf("the bar rose with transactions that were rolled back: %v", err)
		}
	})
}

// A refusal inside a savepoint leaves the rest of the transaction usable.
func TestSavepointContainsRefusal(t *testing.T) {
	onEach(t, func(t *testing.T, db *sql.DB, guard *fence.Guard) {
		if err := guard.Raise(t.Context(), db, "r", 5); err != nil {
			t.Fatal(err)
		}
		tx := begin(t, db, 0)
		execute(t, tx, "INSERT INTO written VALUES (1)")
		execute(t, tx, "SAVEPOINT half")
		wantStale(t, guard.Check(t.Context(), tx, "r", 4), fence.StaleError{Resource: "r", Token: 4, Seen: 5})
		execute(t, tx, "ROLLBACK TO SAVEPOINT half")
		commit(t, tx)
		if n := number(t, db, "SELECT count(*) FROM written"); n != 1 {
			t.Fatalf("%d rows, want 1", n)
		}
	})
}

func TestArguments(t *testing.T) {
	onEach(t, func(t *testing.T, db *sql.DB, guard *fence.Guard) {
		tx := begin(t, db, 0)
		for _, call := range []struct {
			name, want string
			err        error
		}{
			{"empty", "resource is empty", guard.Check(t.Context(), tx, "", 1)},
			{"long", "has 256 bytes", guard.Check(t.Context(), tx, strings.Repeat("x", 256), 1)},
			{"control character", "U+0000", guard.Check(t.Context(), tx, "a\x00b", 1)},
			{"zero", "token is 0", guard.Check(t.Context(), tx, "r", 0)},
			{"big", "token 9223372036854775808 is above 9223372036854775807", guard.Check(t.Context(), tx, "r", math.MaxInt64+1)},
			{"not a transaction", "*sql.DB", guard.Check(t.Context(), db, "r", 1)},
			{"term: empty", "election is empty", guard.CheckTerm(t.Context(), tx, "", 1)},
			{"term: zero", "token is 0", guard.CheckTerm(t.Context(), tx, "e", 0)},
			{"term: not a transaction", "*sql.DB", guard.CheckTerm(t.Context(), db, "e", 1)},
			{"raise", "token is 0", guard.Raise(t.Context(), db, "r", 0)},
		} {
			if !errors.Is(call.err, driver.ErrInvalid) || !strings.Contains(call.err.Error(), call.want) {
				t.Errorf("%s: error %v, want ErrInvalid with %q", call.name, call.err, call.want)
			}
		}
		// Nothing was sent, so that the transaction is as it was.
		for _, name := range []string{`it's "quoted"; DROP TABLE written`, "a/b c", "naïve ✓", "{token}", strings.Repeat("x", 255), "Case", "case", "é", "e\u0301"} {
			if err := guard.Check(t.Context(), tx, name, 1); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
		commit(t, tx)
		if n := number(t, db, "SELECT count(*) FROM "+table(guard)); n != 9 {
			t.Errorf("%d resources, want 9", n)
		}
	})
}

func table(guard *fence.Guard) string {
	if guard.CheckSQL() == "" {
		return "tenure_fence"
	}
	return "tenure.fence"
}

func TestConfig(t *testing.T) {
	for _, config := range []fence.Config{
		{},
		{Dialect: "oracle"},
		{Dialect: fence.Postgres, Namespace: "a\nb"},
		{Dialect: fence.Postgres, IdleTimeout: time.Microsecond},
		{Dialect: fence.Postgres, IdleTimeout: 1000 * time.Hour},
	} {
		if guard, err := fence.New(config); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%+v: %v, %v, want ErrInvalid", config, guard, err)
		}
	}
}

func TestMissingTable(t *testing.T) {
	for dialect, open := range map[fence.Dialect]func(testing.TB) *sql.DB{fence.Postgres: postgresDatabase, fence.SQLite: sqliteDatabase} {
		t.Run(string(dialect), func(t *testing.T) {
			db := open(t)
			guard := newGuard(t, fence.Config{Dialect: dialect, Namespace: `my "own" {fence}`})
			for what, err := range map[string]error{
				"CreateTable":       guard.Raise(t.Context(), db, "r", 1),
				"tenure store init": guard.CheckTerm(t.Context(), begin(t, db, 0), "e", 1),
			} {
				if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), what) {
					t.Errorf("error %v, want ErrInvalid that names %s", err, what)
				}
			}
			// Ten processes that start at once.
			var group sync.WaitGroup
			for range 10 {
				group.Go(func() {
					if err := guard.CreateTable(t.Context(), db); err != nil {
						t.Error(err)
					}
				})
			}
			group.Wait()
			if err := guard.Raise(t.Context(), db, "r", 1); err != nil {
				t.Error(err)
			}
			execute(t, db, guard.Schema()) // changes nothing
			wantStale(t, func() error { _ = guard.Raise(t.Context(), db, "r", 3); return guard.Raise(t.Context(), db, "r", 2) }(),
				fence.StaleError{Resource: "r", Token: 2, Seen: 3})
		})
	}
}

// Whoever runs the text of Schema, one statement after the other, is alone until the table is there.
func TestSchemaKeepsItsLock(t *testing.T) {
	db := postgresDatabase(t)
	guard := newGuard(t, fence.Config{Dialect: fence.Postgres})
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
	created := 0
	for statement := range strings.SplitAfterSeq(strings.TrimSpace(guard.Schema()), ";\n") {
		execute(t, conn, statement)
		if strings.HasPrefix(statement, "CREATE") {
			created++
			if n := number(t, db, locks); n != 1 {
				t.Errorf("%d locks are held after %s", n, statement)
			}
		}
	}
	if n := number(t, db, locks); created != 2 || n != 0 {
		t.Errorf("%d objects were created, and %d locks are left", created, n)
	}
	if err := guard.Raise(t.Context(), db, "r", 1); err != nil {
		t.Error(err)
	}
	// Within somebody's transaction nothing is committed before it is.
	other := newGuard(t, fence.Config{Dialect: fence.Postgres, Namespace: "other"})
	tx := begin(t, db, 0)
	execute(t, tx, other.CreateSQL())
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if n := number(t, db, "SELECT count(*) FROM pg_namespace WHERE nspname = 'other'"); n != 0 {
		t.Error("the schema was created by a transaction that was rolled back")
	}
}

// Two tokens that use a resource for the first time at the same moment: whatever the order, the higher one is the bar at the end.
func TestFirstUseRace(t *testing.T) {
	onEach(t, func(t *testing.T, db *sql.DB, guard *fence.Guard) {
		for round := range 20 {
			resource := "r" + strings.Repeat("x", round)
			var group sync.WaitGroup
			for _, token := range []uint64{1, 2, 2, 3} {
				group.Go(func() {
					if err := guard.Raise(t.Context(), db, resource, token); err != nil && (token == 3 || !errors.Is(err, fence.ErrStale)) {
						t.Errorf("token %d: %v", token, err)
					}
				})
			}
			group.Wait()
			if bar := number(t, db, "SELECT token FROM "+table(guard)+" WHERE resource = $1", resource); bar != 3 {
				t.Fatalf("the bar is %d, want 3", bar)
			}
		}
	})
}

func TestClause(t *testing.T) {
	onEach(t, func(t *testing.T, db *sql.DB, guard *fence.Guard) {
		execute(t, db, "CREATE TABLE accounts (id int PRIMARY KEY, balance bigint)")
		execute(t, db, "INSERT INTO accounts VALUES (1, 0)")
		first, second := placeholders(guard)
		update := func(token int64) int64 {
			return execute(t, db, "UPDATE accounts SET balance = balance + 1 WHERE id = 1 AND "+guard.Clause(first, second), "accounts", token)
		}
		insert := func(token int64) int64 {
			return execute(t, db, "INSERT INTO written SELECT CAST("+second+" AS bigint) WHERE "+guard.Clause(first, second), "accounts", token)
		}
		remove := func(token int64) int64 {
			return execute(t, db, "DELETE FROM written WHERE "+guard.Clause(first, second), "accounts", token)
		}
		want := func(what string, got, want int64) {
			t.Helper()
			if got != want {
				t.Fatalf("%s: %d rows, want %d", what, got, want)
			}
		}
		want("before Raise", update(5), 0)
		if err := guard.Raise(t.Context(), db, "accounts", 5); err != nil {
			t.Fatal(err)
		}
		want("current UPDATE", update(5), 1)
		want("current INSERT", insert(5), 1)
		if err := guard.Raise(t.Context(), db, "accounts", 6); err != nil {
			t.Fatal(err)
		}
		want("stale UPDATE", update(5), 0)
		want("stale INSERT", insert(5), 0)
		want("stale DELETE", remove(5), 0)
		want("UPDATE of the new term", update(6), 1)
		want("DELETE of the new term", remove(6), 1)
		wantStale(t, guard.Raise(t.Context(), db, "accounts", 5), fence.StaleError{Resource: "accounts", Token: 5, Seen: 6})
	})
}
