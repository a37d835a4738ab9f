package sqlstore

import "strings"

// SchemaVersion is the version of the tables that this package works with, the one row of meta.
const SchemaVersion = 1

// The tables. Times are microseconds since the epoch by the database's clock.
//
// session in elections has no foreign key: a row whose session does not exist any more is vacant. Constraints on values are left out
// on purpose: what an operator wrote by hand is reported as corrupt, by name, when it is read.
var tables = []string{
	`CREATE TABLE IF NOT EXISTS {meta} (
  version bigint NOT NULL
){suffix}`,
	`INSERT INTO {meta} (version) SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM {meta})`,

	// A member's lease. A row is there as long as the session can be renewed, and until somebody has freed what it held. bound is not 0 for
	// a session that ends with something else too, which that number names.
	`CREATE TABLE IF NOT EXISTS {sessions} (
  id {text} NOT NULL PRIMARY KEY,
  member {text} NOT NULL,
  ttl bigint NOT NULL,
  opened_at bigint NOT NULL,
  expires_at bigint NOT NULL,
  bound bigint NOT NULL DEFAULT 0
){suffix}`,
	`CREATE INDEX IF NOT EXISTS {index sessions_expires_at} ON {sessions} (expires_at)`,
	`CREATE INDEX IF NOT EXISTS {index sessions_member} ON {sessions} (member)`,

	// An election's current term, or its last one's token. session is NULL, and member empty, when nobody holds it.
	`CREATE TABLE IF NOT EXISTS {elections} (
  name {text} NOT NULL PRIMARY KEY,
  token bigint NOT NULL,
  session {text},
  member {text} NOT NULL DEFAULT '',
  value {bytes} NOT NULL DEFAULT (CAST('' AS {bytes})),
  acquired_at bigint NOT NULL DEFAULT 0,
  asked bigint NOT NULL DEFAULT 0
){suffix}`,
	`CREATE INDEX IF NOT EXISTS {index elections_session} ON {elections} (session, token)`,

	// Who waits for an election, in the order of seq. The nonce, unless 0, comes back with the notification that the election was given to this place: only who may
	// read the table knows it.
	`CREATE TABLE IF NOT EXISTS {waiters} (
  seq {serial},
  election {text} NOT NULL,
  session {text} NOT NULL,
  member {text} NOT NULL,
  value {bytes} NOT NULL,
  nonce bigint NOT NULL DEFAULT 0
){suffix}`,
	`CREATE UNIQUE INDEX IF NOT EXISTS {index waiters_place} ON {waiters} (election, session)`,
	`CREATE INDEX IF NOT EXISTS {index waiters_line} ON {waiters} (election, seq)`,
	`CREATE INDEX IF NOT EXISTS {index waiters_session} ON {waiters} (session, seq)`,
}

// Tables returns the statements that create the tables and indexes, in order, each without effect when its object exists. What Token reads
// is the dialect's own business, as are views. index returns an index's name as it stands after CREATE INDEX, given sessions_member.
func Tables(d Dialect, index func(name string) string) []string {
	var statements []string
	for _, text := range tables {
		text = strings.NewReplacer("{text}", d.Text, "{serial}", d.Serial, "{suffix}", suffix(d.Suffix)).Replace(text)
		if head, rest, ok := strings.Cut(text, "{index "); ok {
			name, rest, _ := strings.Cut(rest, "}")
			text = head + index(name) + rest
		}
		statements = append(statements, expand(d, text))
	}
	return statements
}

func suffix(s string) string {
	if s == "" {
		return ""
	}
	return " " + s
}
