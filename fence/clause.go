package fence

import "strings"

// Clause returns a condition to join to an UPDATE, a DELETE or an INSERT … SELECT of the caller, which then needs no check of its own:
//
//	UPDATE accounts SET balance = $1 WHERE id = $2 AND <clause>
//
// Resource and token are the placeholders (or expressions) by which the caller passes them: "$3", "$4"; on SQLite "?3", "?4", for there a
// placeholder with a dollar sign is numbered by where it first stands. The condition holds while the token equals the bar, and keeps the bar from rising until the transaction ends. It does not raise the bar: call
// [Guard.Raise] once at the start of the term. A stale write affects 0 rows, as does one that finds no row of its own: [Guard.Check]
// in the same transaction, or Raise, tells the one from the other.
//
// On SQLite the bar and what the statement writes must be in the same file.
func (g *Guard) Clause(resource, token string) string { return g.expand(g.clause, resource, token) }

// TermClause is Clause for the stricter form: the condition holds while the session that was elected with the token holds the election and is alive. There is
// nothing to raise. [Guard.CheckTerm] tells a term that is over from a row that was not found.
func (g *Guard) TermClause(election, token string) string {
	return g.expand(g.termClause, election, token)
}

// With returns common table expressions to put in front of a statement of the caller, which then needs no check and no [Guard.Raise]:
//
//	<with> UPDATE accounts SET balance = $1 WHERE id = $2 AND (SELECT token FROM tenure_bar) = $4
//
// It raises the bar as [Guard.Check] does. A stale token makes the statement fail; [Guard.Explain] makes a *StaleError of that failure. The
// caller's statement must read tenure_bar, as above, or nothing is checked. PostgreSQL only: empty for other dialects.
func (g *Guard) With(resource, token string) string {
	if g.dialect != Postgres {
		return ""
	}
	return g.expand("WITH "+postgresCheck+", tenure_bar AS MATERIALIZED (\n"+strings.Replace(postgresBar, "{idle}", "", 1)+"\n)", resource, token)
}

// CheckSQL is the statement of [Guard.Check], with the resource as $1 (text) and the token as $2 (bigint), for other clients and for
// pipelines: a stale token makes it fail, so that the server skips the rest of the pipeline and aborts the transaction. [Guard.Explain] makes a *StaleError
// of that failure. PostgreSQL only: empty for other dialects.
func (g *Guard) CheckSQL() string {
	if g.dialect != Postgres {
		return ""
	}
	return g.check
}

// TermSQL is CheckSQL for [Guard.CheckTerm], with the election as $1 and [Guard.ExplainTerm].
func (g *Guard) TermSQL() string {
	if g.dialect != Postgres {
		return ""
	}
	return g.checkTerm
}
