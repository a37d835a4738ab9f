// Package fence guards what a leader writes to a database: it refuses, inside the caller's own transaction, a write that carries the
// token of an earlier term.
//
// A lease alone cannot do this. A leader that was paused between its last look at the clock and its write does not know that a
// successor has been elected meanwhile. The resource can know, when every write brings the token of its term: tokens only
// grow, so that whoever has seen a token refuses all lower ones.
//
// There are two forms.
//
//   - [Guard.Check] works in any database. The table "fence" there holds the highest token seen for each resource: the bar.
//     A lower token is refused, an equal one passes, a higher one passes and raises the bar. A stale leader is refused from the moment that
//     its successor has made its first write (or its first [Guard.Raise]).
//   - [Guard.CheckTerm] works in the database that holds the elections themselves. It looks at the election, not at a bar, and
//     refuses from the moment that a successor is elected or the term is over.
//
// # Guarantees
//
//  1. The check and all that the transaction writes after it are one atomic step: between them and the commit no other transaction
//     can raise the bar, and no successor can be elected. Both wait for the commit or the rollback.
//  2. What a committed transaction has raised stays raised. What a transaction raised that was rolled back was never raised.
//  3. On PostgreSQL a refused check aborts the transaction: nothing of it can be committed, even by a caller that ignores the error.
//  4. Transactions of one term do not wait for each other. A transaction that wants to raise the bar waits for those that are
//     open, and is not overtaken by later ones.
//  5. On PostgreSQL the server ends a checked transaction that is idle for longer than [Config.IdleTimeout], so that a leader that was stopped in the
//     middle of one does not hold up its successor for longer.
//
// The guard is for writes to one database. It does not stop a stale leader from doing something else: sending mail, calling
// another service. Those need a guard of their own.
//
// The root module has no requirements, so that this package is for database/sql; package fencepgx is the same for pgx.
package fence
