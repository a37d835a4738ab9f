package fence_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gotenure/tenure/fence"
)

// onElections runs a test against each dialect with the elections' tables, as far as the guard reads them, and the election "e" held with token 5.
func onElections(t *testing.T, test func(t *testing.T, db *sql.DB, guard *fence.Guard, tables map[string]string)) {
	onEach(t, func(t *testing.T, db *sql.DB, guard *fence.Guard) { test(t, db, guard, withElections(t, db, guard)) })
}

func withElections(t *testing.T, db *sql.DB, guard *fence.Guard) map[string]string {
	t.Helper()
	tables := map[string]string{"elections": "tenure_elections", "sessions": "tenure_sessions"}
	if guard.CheckSQL() != "" {
		tables = map[string]string{"elections": "tenure.elections", "sessions": "tenure.sessions"}
	}
	execute(t, db, "CREATE TABLE "+tables["sessions"]+" (id text PRIMARY KEY, expires_at bigint NOT NULL)")
	execute(t, db, "CREATE TABLE "+tables["elections"]+" (name text PRIMARY KEY, token bigint NOT NULL, session text)")
	execute(t, db, "INSERT INTO "+tables["sessions"]+" VALUES ('s5', $1), ('s6', $1)", expiry(time.Hour))
	execute(t, db, "INSERT INTO "+tables["elections"]+" VALUES ('e', 5, 's5')")
	return tables
}

func expand(statement string, tables map[string]string) string {
	return strings.NewReplacer("{elections}", tables["elections"], "{sessions}", tables["sessions"]).Replace(statement)
}

// placeholders are those of the first two arguments. In SQLite $2 is a name, numbered by where it first stands.
func placeholders(guard *fence.Guard) (first, second string) {
	if guard.CheckSQL() == "" {
		return "?1", "?2"
	}
	return "$1", "$2"
}

// The databases of the tests run on this machine and share its clock.
func expiry(in time.Duration) int64 { return time.Now().Add(in).UnixMicro() }

func TestTermIsRefusedFromTheElectionOn(t *testing.T) {
	onElections(t, func(t *testing.T, db *sql.DB, guard *fence.Guard, tables map[string]string) {
		for _, step := range []struct{ name, change, undo, seen string }{
			{"successor elected", "UPDATE {elections} SET token = 6, session = 's6'", "UPDATE {elections} SET token = 5, session = 's5'", "6"},
			{"vacant", "UPDATE {elections} SET session = NULL", "UPDATE {elections} SET session = 's5'", "5"},
			{"expired, nobody has noticed", fmt.Sprintf("UPDATE {sessions} SET expires_at = %d WHERE id = 's5'", expiry(-time.Second)),
				fmt.Sprintf("UPDATE {sessions} SET expires_at = %d WHERE id = 's5'", expiry(time.Hour)), "5"},
			{"session gone", "DELETE FROM {sessions} WHERE id = 's5'", fmt.Sprintf("INSERT INTO {sessions} VALUES ('s5', %d)", expiry(time.Hour)), "5"},
			{"record gone", "DELETE FROM {elections}", "INSERT INTO {elections} VALUES ('e', 5, 's5')", "0"},
			{"record of an older term", "UPDATE {elections} SET token = 3", "UPDATE {elections} SET token = 5", "3"},
		} {
			both := func(wantErr *fence.StaleError) {
				t.Helper()
				tx := begin(t, db, 0)
				insert := "INSERT INTO written SELECT 5 WHERE " + guard.TermClause(placeholders(guard))
				wantRows := int64(1)
				if wantErr != nil {
					wantRows = 0
				}
				if n := execute(t, tx, insert, "e", 5); n != wantRows {
					t.Fatalf("%s: the clause wrote %d rows, want %d", step.name, n, wantRows)
				}
				err := guard.CheckTerm(t.Context(), tx, "e", 5)
				if wantErr != nil {
					wantStale(t, err, *wantErr)
				} else if err != nil {
					t.Fatalf("%s: %v", step.name, err)
				}
				tx.Rollback()
			}
			both(nil)
			execute(t, db, expand(step.change, tables))
			var seen uint64
			_, _ = fmt.Sscan(step.seen, &seen)
			both(&fence.StaleError{Election: "e", Token: 5, Seen: seen})
			execute(t, db, expand(step.undo, tables))
		}
	})
}

// Between the check and the commit no successor is elected and the record does not go, but the session is renewed.
func TestTermHoldsUntilCommit(t *testing.T) {
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		for _, form := range []string{"check", "clause"} {
			t.Run(level.String()+"/"+form, func(t *testing.T) {
				db, guard := fencedPostgres(t, fence.Config{}) // SQLite: TestSQLiteCheckTakesTheWriteLock
				tables := withElections(t, db, guard)
				checked := func() *sql.Tx {
					t.Helper()
					tx := begin(t, db, level)
					if form == "check" {
						if err := guard.CheckTerm(t.Context(), tx, "e", 5); err != nil {
							t.Fatal(err)
						}
					} else if n := execute(t, tx, "INSERT INTO written SELECT 5 WHERE "+guard.TermClause("$1", "$2"), "e", 5); n != 1 {
						t.Fatal("the clause refused the current term")
					}
					return tx
				}
				first, second := checked(), checked() // beside each other
				execute(t, db, expand("UPDATE {sessions} SET expires_at = expires_at + 1 WHERE id = 's5'", tables))
				for _, takeover := range []string{"UPDATE {elections} SET token = 6, session = 's6' WHERE name = 'e'", "DELETE FROM {elections} WHERE name = 'e'"} {
					if first == nil {
						first = checked()
					}
					tx := begin(t, db, 0)
					taken := async(func() error { _, err := tx.Exec(expand(takeover, tables)); return err })
					waiting(t, db, taken, 1)
					execute(t, first, "INSERT INTO written VALUES (5)")
					commit(t, first)
					if second != nil {
						waiting(t, db, taken, 1)
						commit(t, second)
					}
					if err := result(t, taken); err != nil {
						t.Fatal(err)
					}
					tx.Rollback()
					first, second = nil, nil
				}
			})
		}
	}
}

// A check that waits for a transfer in flight is decided by how it ends.
func TestTermWaitsForTransferInFlight(t *testing.T) {
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		for _, end := range []string{"committed", "rolled back"} {
			t.Run(level.String()+"/"+end, func(t *testing.T) {
				db, guard := fencedPostgres(t, fence.Config{})
				tables := withElections(t, db, guard)
				transfer := begin(t, db, 0)
				execute(t, transfer, expand("UPDATE {elections} SET token = 6, session = 's6'", tables))
				old := begin(t, db, level)
				checked := async(func() error { return guard.CheckTerm(t.Context(), old, "e", 5) })
				waiting(t, db, checked, 1)
				if end == "rolled back" {
					transfer.Rollback()
					if err := result(t, checked); err != nil {
						t.Fatal(err)
					}
					return
				}
				commit(t, transfer)
				if err := result(t, checked); err == nil {
					t.Fatal("a term passed whose successor had been elected")
				}
			})
		}
	}
}
