package fence_test

import (
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gotenure/tenure/fence"
)

// twoOnSQLite are two connections' worth of one file that do not wait for each other: who finds it locked fails at once.
func twoOnSQLite(t *testing.T, journal string) (one, two *sql.DB, guard *fence.Guard, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file.db")
	one, two = openSQLite(t, path, 0), openSQLite(t, path, 0)
	if got := ""; one.QueryRow("PRAGMA journal_mode = "+journal).Scan(&got) != nil || got != journal {
		t.Fatalf("journal mode %q, want %q", got, journal)
	}
	guard = newGuard(t, fence.Config{Dialect: fence.SQLite})
	if err := guard.CreateTable(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	execute(t, one, "CREATE TABLE written (token bigint)")
	withElections(t, one, guard)
	if err := guard.Raise(t.Context(), one, "r", 5); err != nil {
		t.Fatal(err)
	}
	return one, two, guard, path
}

func busy(err error) bool {
	return err != nil && !errors.Is(err, fence.ErrStale) && strings.Contains(err.Error(), "locked")
}

// A check that changes nothing still keeps every other writer out until the end of its transaction.
func TestSQLiteCheckTakesTheWriteLock(t *testing.T) {
	checks := map[string]func(t *testing.T, guard *fence.Guard, tx *sql.Tx) error{
		"check": func(t *testing.T, guard *fence.Guard, tx *sql.Tx) error { return guard.Check(t.Context(), tx, "r", 5) },
		"checkTerm": func(t *testing.T, guard *fence.Guard, tx *sql.Tx) error {
			return guard.CheckTerm(t.Context(), tx, "e", 5)
		},
	}
	for name, check := range checks {
		for _, journal := range []string{"wal", "delete"} {
			t.Run(name+"/"+journal, func(t *testing.T) {
				one, two, guard, _ := twoOnSQLite(t, journal)
				tx := begin(t, one, 0)
				if err := check(t, guard, tx); err != nil {
					t.Fatal(err)
				}
				if err := guard.Raise(t.Context(), two, "r", 6); !busy(err) {
					t.Fatalf("error %v, want the file locked", err)
				}
				if _, err := two.Exec("UPDATE tenure_elections SET token = 6"); !busy(err) {
					t.Fatalf("error %v, want the file locked", err)
				}
				commit(t, tx)
				if err := guard.Raise(t.Context(), two, "r", 6); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// A deferred transaction that has read before the newer token was committed cannot check against what it read.
func TestSQLiteOldSnapshotDoesNotPass(t *testing.T) {
	one, two, guard, _ := twoOnSQLite(t, "wal")
	for name, check := range map[string]func(tx *sql.Tx) error{
		"check":     func(tx *sql.Tx) error { return guard.Check(t.Context(), tx, "r", 5) },
		"checkTerm": func(tx *sql.Tx) error { return guard.CheckTerm(t.Context(), tx, "e", 5) },
		"clause": func(tx *sql.Tx) error {
			_, err := tx.Exec("INSERT INTO written SELECT 5 WHERE "+guard.Clause("?1", "?2"), "r", 5)
			return err
		},
		"termClause": func(tx *sql.Tx) error {
			_, err := tx.Exec("INSERT INTO written SELECT 5 WHERE "+guard.TermClause("?1", "?2"), "e", 5)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			old := begin(t, one, 0)
			var n int
			if err := old.QueryRow("SELECT count(*) FROM written").Scan(&n); err != nil {
				t.Fatal(err)
			}
			execute(t, two, "UPDATE tenure_elections SET token = token + 1")
			if err := guard.Raise(t.Context(), two, "r", uint64(number(t, two, "SELECT token + 1 FROM tenure_fence"))); err != nil {
				t.Fatal(err)
			}
			if err := check(old); !busy(err) {
				t.Fatalf("error %v, want the old snapshot refused", err)
			}
		})
	}
}

// The protected table may be in another file than the bars, if the check is a statement of its own.
func TestSQLiteAttachedFile(t *testing.T) {
	one, two, guard, path := twoOnSQLite(t, "wal")
	other := openSQLite(t, filepath.Join(filepath.Dir(path), "other.db"), time.Second)
	execute(t, other, "CREATE TABLE elsewhere (token bigint)")
	connection, err := one.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	execute(t, connection, "ATTACH $1 AS other", filepath.Join(filepath.Dir(path), "other.db"))

	execute(t, connection, "BEGIN")
	if err := guard.Check(t.Context(), connection, "r", 5); err != nil {
		t.Fatal(err)
	}
	if err := guard.Raise(t.Context(), two, "r", 6); !busy(err) {
		t.Fatalf("error %v: the bar rose between the check and the write to the other file", err)
	}
	execute(t, connection, "INSERT INTO other.elsewhere VALUES (5)")
	execute(t, connection, "COMMIT")
}

// An equal token costs no page of the bars' table.
func TestSQLiteEqualTokenWritesNothing(t *testing.T) {
	one, _, guard, _ := twoOnSQLite(t, "wal")
	execute(t, one, "PRAGMA wal_checkpoint(TRUNCATE)")
	for range 3 {
		if err := guard.Raise(t.Context(), one, "r", 5); err != nil {
			t.Fatal(err)
		}
	}
	var blocked, frames, moved int
	if err := one.QueryRow("PRAGMA wal_checkpoint(PASSIVE)").Scan(&blocked, &frames, &moved); err != nil {
		t.Fatal(err)
	}
	if frames != 0 {
		t.Errorf("%d pages were written, want none", frames)
	}
}
