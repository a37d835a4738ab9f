package fence

import "strings"

// SQLite has one writer at a time. A statement that may write takes the file's write lock when it starts, whether or not it then
// changes a row, and the transaction keeps it; if the transaction has read before and somebody has written since, it
// fails (SQLITE_BUSY_SNAPSHOT) instead. So the bar is raised first, and read under the lock. Two statements rather than one with RETURNING: the commit of an
// equal token then writes no page of this table.
const (
	sqliteRaise = `INSERT INTO {fence} (resource, token) VALUES (?1, ?2)
ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE token < excluded.token`

	sqliteCheck = `SELECT token, ?2 FROM {fence} WHERE resource = ?1`

	sqliteLock = `UPDATE {elections} SET token = token WHERE false`

	sqliteTerm = `SELECT election.token, session.id IS NOT NULL, ?2 FROM {elections} AS election
LEFT JOIN {sessions} AS session ON session.id = election.session AND session.expires_at > {now} WHERE election.name = ?1`

	sqliteClause = `EXISTS (SELECT 1 FROM {fence} WHERE resource = {resource} AND token = {token})`

	sqliteTermClause = `EXISTS (SELECT 1 FROM {elections} AS tenure_election JOIN {sessions} AS tenure_session ON tenure_session.id = tenure_election.session ` +
		`WHERE tenure_election.name = {election} AND tenure_election.token = {token} AND tenure_session.expires_at > {now})`

	sqliteNow = `CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)`

	sqliteSchema = `CREATE TABLE IF NOT EXISTS {fence} (
  resource TEXT NOT NULL PRIMARY KEY COLLATE BINARY,
  token INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token > 0)
) WITHOUT ROWID;
`
)

func (g *Guard) prepareSQLite() {
	table := func(name string) string { return quoted(g.namespace + "_" + name) }
	g.fence, g.elections, g.sessions = table("fence"), table("elections"), table("sessions")
	g.now = sqliteNow
	g.raise, g.check = g.expand(sqliteRaise, "", ""), g.expand(sqliteCheck, "", "")
	g.lockElections, g.checkTerm = g.expand(sqliteLock, "", ""), g.expand(sqliteTerm, "", "")
	g.clause, g.termClause = sqliteClause, sqliteTermClause
	g.create = g.expand(sqliteSchema, "", "")
	g.exists = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '" + strings.ReplaceAll(g.namespace, "'", "''") + "_fence')"
}
