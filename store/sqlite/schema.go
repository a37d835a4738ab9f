package sqlite

import (
	"fmt"
	"strings"
	"time"

	"github.com/gotenure/tenure/store/sqlstore"
)

// now is an expression of the clock that decides expiry.
const now = "((SELECT base FROM tenure_clock) + tenure_boot())"

// dialect is how SQLite differs from other databases. Errors name the file at path.
func dialect(path string) sqlstore.Dialect {
	return sqlstore.Dialect{
		Name:      Name + " " + path,
		Table:     func(name string) string { return "tenure_" + name },
		Parameter: func(n int) string { return fmt.Sprintf("?%d", n) },
		Now:       now,
		// A table of its own, so that tokens go on when an operator deletes an election.
		Token:      func(rank string) string { return "((SELECT last FROM tenure_token) + " + rank + ")" },
		Greatest:   "max",
		AfterToken: "UPDATE tenure_token SET last = last + changes() WHERE changes() > 0",
		Poll:       20 * time.Millisecond,
		Text:       "TEXT",
		Bytes:      "BLOB",
		Serial:     "INTEGER PRIMARY KEY AUTOINCREMENT",
	}
}

// schema returns the statements that create what is missing.
func schema() []string {
	return append(sqlstore.Tables(dialect(""), func(name string) string { return "tenure_" + name }),
		`CREATE TABLE IF NOT EXISTS tenure_token (
  last INTEGER NOT NULL
)`,
		// The first tokens are milliseconds since the epoch: those of a file that is made anew go on above those of one that was deleted.
		`INSERT INTO tenure_token (last)
SELECT max(CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), (SELECT coalesce(max(token), 0) FROM tenure_elections))
WHERE NOT EXISTS (SELECT 1 FROM tenure_token)`,
		`CREATE TABLE IF NOT EXISTS tenure_clock (
  boot TEXT NOT NULL,
  base INTEGER NOT NULL
)`,
		`CREATE VIEW IF NOT EXISTS tenure_status AS
SELECT e.name AS election, e.member AS leader, e.session, e.token, CAST(e.value AS TEXT) AS value,
  strftime('%Y-%m-%dT%H:%M:%fZ', e.acquired_at / 1e6, 'unixepoch') AS acquired_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', s.expires_at / 1e6, 'unixepoch') AS expires_at,
  (SELECT count(*) FROM tenure_waiters AS w WHERE w.election = e.name) AS waiters
FROM tenure_elections AS e LEFT JOIN tenure_sessions AS s ON s.id = e.session`)
}

// Schema returns the SQL that creates the tables, for people: the store creates what is missing when it is opened. What tenure_clock holds depends on
// the machine's last start, and is filled in then.
func Schema() string { return strings.Join(schema(), ";\n") + ";\n" }
