package fence

import "strings"

// How the check on PostgreSQL works.
//
// The row of the resource is locked FOR SHARE by a token that equals the bar, which transactions of one term can do together and which
// stops an UPDATE of the row. A higher token updates the row, which stops the others. Locking a row gives its latest version at READ
// COMMITTED, and a serialization failure at the levels above when that is newer than the transaction's snapshot: so neither passes on an old bar.
//
// Row locks alone are not fair: FOR SHARE overtakes an UPDATE that waits for earlier sharers, so that a stale leader with always one
// transaction open would keep its successor waiting for ever. Advisory locks queue in order. Hence the gate, an advisory lock
// that is shared by equal tokens and exclusive for higher ones, taken before the row's. It is there for fairness only: a hash
// that two resources share costs waiting, not safety.
const postgresCheck = `tenure_gate AS MATERIALIZED (
  SELECT CASE WHEN EXISTS (SELECT FROM {fence} WHERE resource = {resource} AND token >= {token})
    THEN pg_advisory_xact_lock_shared({key}) ELSE pg_advisory_xact_lock({key}) END IS NOT NULL AS passed
), tenure_seen AS MATERIALIZED (
  SELECT token FROM {fence} WHERE resource = {resource} AND token >= {token} AND (SELECT passed FROM tenure_gate) FOR SHARE
), tenure_raised AS (
  INSERT INTO {fence} AS bar (resource, token) SELECT {resource}, {token} WHERE NOT EXISTS (SELECT FROM tenure_seen)
  ON CONFLICT (resource) DO UPDATE SET token = greatest(bar.token, excluded.token) RETURNING token
)`

// The cast of the mark fails, which is how plain SQL raises an error.
const postgresBar = `SELECT CASE WHEN token <= {token} THEN token ELSE ('` + staleMark + `' || token)::bigint END AS token{idle}
FROM (SELECT token FROM tenure_seen UNION ALL SELECT token FROM tenure_raised) AS bar`

// The election's row is locked against every statement that ends the term, which all update or delete it. The session's row is not locked:
// renewals update it. The gate is shared here; package store/postgres takes it for itself when a candidate queues or the leader is asked to resign, which
// a leader that always has a transaction open would otherwise keep waiting.
const postgresTerm = `WITH held AS MATERIALIZED (
  SELECT election.token FROM {elections} AS election JOIN {sessions} AS session ON session.id = election.session
  WHERE election.name = {election} AND election.token = {token} AND session.expires_at > {now}
    AND (SELECT pg_advisory_xact_lock_shared({term key})) IS NOT NULL FOR SHARE OF election
)
SELECT CASE WHEN EXISTS (SELECT FROM held) THEN {token}
  ELSE ('` + overMark + `' || coalesce((SELECT token FROM {elections} WHERE name = {election}), 0))::bigint END, true{idle}`

// A column of the checks, not of the clauses: these are for statements that often are a transaction by themselves.
const postgresIdle = `, CASE WHEN current_setting('idle_in_transaction_session_timeout')::interval BETWEEN '1 ms' AND '{timeout} ms' THEN NULL
  ELSE set_config('idle_in_transaction_session_timeout', '{timeout}', true) END`

const postgresClause = `EXISTS (SELECT FROM {fence} WHERE resource = {resource} AND token = {token} AND (SELECT pg_advisory_xact_lock_shared({key})) IS NOT NULL FOR SHARE)`

const postgresTermClause = `EXISTS (SELECT FROM {elections} AS tenure_election JOIN {sessions} AS tenure_session ON tenure_session.id = tenure_election.session ` +
	`WHERE tenure_election.name = {election} AND tenure_election.token = {token} AND tenure_session.expires_at > {now} ` +
	`AND (SELECT pg_advisory_xact_lock_shared({term key})) IS NOT NULL FOR SHARE OF tenure_election)`

// Microseconds since the epoch at the start of the statement, as the elections' tables hold them.
const postgresNow = `(extract(epoch FROM statement_timestamp()) * 1000000)::bigint`

// The lock is for several processes that create the table at the same moment, which IF NOT EXISTS does not cover.
const postgresSchema = `SELECT pg_advisory_xact_lock(hashtextextended('tenure schema', 0));
CREATE SCHEMA IF NOT EXISTS {namespace};
CREATE TABLE IF NOT EXISTS {fence} (
  resource text COLLATE "C" PRIMARY KEY,
  token bigint NOT NULL CHECK (token > 0)
);
`

func (g *Guard) preparePostgres() {
	table := func(name string) string { return g.quotedNamespace() + "." + name }
	g.fence, g.elections, g.sessions = table("fence"), table("elections"), table("sessions")
	g.now = postgresNow
	idle := ", NULL"
	if g.idleTimeout > 0 {
		idle = postgresIdle
	}
	g.check = g.expand(strings.ReplaceAll("WITH "+postgresCheck+"\n"+postgresBar, "{idle}", idle), "$1", "$2")
	g.checkTerm = g.expand(strings.ReplaceAll(postgresTerm, "{idle}", idle), "$1", "$2")
	g.clause, g.termClause = postgresClause, postgresTermClause
	g.create = g.expand(postgresSchema, "", "")
	g.exists = "SELECT to_regclass(" + literal(g.fence) + ") IS NOT NULL"
}
