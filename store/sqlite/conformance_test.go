//go:build linux

package sqlite_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/driver/drivertest"
	"github.com/gotenure/tenure/store/sqlite"
	"github.com/ncruces/go-sqlite3"
)

func TestConformance(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		// Cases run at the same time, with members of the same names: each has its file, or they would be namesakes.
		path := filepath.Join(t.TempDir(), "tenure.db")
		return drivertest.Harness{
			Open: func(t testing.TB) driver.Store { return open(t, path) },
			DeleteRecord: func(t testing.TB, election string) {
				execute(t, path, "DELETE FROM tenure_elections WHERE name = ?", election)
			},
			OverwriteRecord: func(t testing.TB, election, session string) {
				execute(t, path, "UPDATE tenure_token SET last = last + 1")
				execute(t, path, `UPDATE tenure_elections SET session = ?1, member = (SELECT member FROM tenure_sessions WHERE id = ?1),
token = (SELECT last FROM tenure_token), value = x'', asked = 0 WHERE name = ?2`, session, election)
			},
			DropSession: func(t testing.TB, session string) {
				execute(t, path, "DELETE FROM tenure_sessions WHERE id = ?", session)
			},
			CorruptRecord: func(t testing.TB, election string) {
				execute(t, path, "INSERT INTO tenure_elections (name, token) VALUES (?, -5) ON CONFLICT DO UPDATE SET token = -5", election)
			},
			Resources: func(t testing.TB) int {
				return rows(t, path) + openFiles(t, path)
			},
		}
	})
}

// open opens a store that the caller closes.
func open(t testing.TB, path string) *sqlite.Store {
	t.Helper()
	store, err := sqlite.New(context.Background(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// database opens the file as an operator does, who knows nothing of the store.
func database(t testing.TB, path string) *sqlite3.Conn {
	t.Helper()
	db, err := sqlite3.OpenFlags(path, sqlite3.OPEN_READWRITE)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.BusyTimeout(patience); err != nil {
		t.Fatal(err)
	}
	return db
}

// execute runs a statement as an operator does.
func execute(t testing.TB, path, sql string, args ...string) {
	t.Helper()
	db := database(t, path)
	defer db.Close()
	statement, _, err := db.Prepare(sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	defer statement.Close()
	for i, arg := range args {
		if err := statement.BindText(i+1, arg); err != nil {
			t.Fatal(err)
		}
	}
	if err := statement.Exec(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// query returns the first column of the first row.
func query(t testing.TB, path, sql string) int64 {
	t.Helper()
	db := database(t, path)
	defer db.Close()
	statement, _, err := db.Prepare(sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	defer statement.Close()
	if !statement.Step() {
		t.Fatalf("%s: no row: %v", sql, statement.Err())
	}
	return statement.ColumnInt64(0)
}

// rows counts what members leave in the file while they live.
func rows(t testing.TB, path string) int {
	return int(query(t, path, "SELECT (SELECT count(*) FROM tenure_sessions) + (SELECT count(*) FROM tenure_waiters)"))
}

// openFiles counts the descriptors of the process that are of the file.
func openFiles(t testing.TB, path string) int {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, fd := range fds {
		if name, err := os.Readlink(fd); err == nil && len(name) >= len(path) && name[:len(path)] == path {
			n++
		}
	}
	return n
}
