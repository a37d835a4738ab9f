// Package sqlstore is the mechanism of the stores that are SQL databases. It is for those who write such a driver: programs use
// package store/postgres or store/sqlite. A driver brings an [Engine], which runs statements, and a [Dialect], which says how the database differs.
//
// # Tables
//
// sessions has a row for each member's lease: who, and when it expires by the database's clock. elections has a row for each election: the
// token of its term, and the session that holds it or null. waiters has the queue of each election. meta has the version of the schema.
//
// A session holds an election when the election's row names it and the row of the session exists. Renewing is one UPDATE of the session's row, whatever it
// holds. A row that has expired still stands in the way of others until one of them has removed it; a renewal that finds
// its row removed or expired fails, for ever. So a renewal that was received in time and is committed late is safe: whoever wants to take over
// has to delete the row, waits or goes away while the renewal has it locked, and looks at it again after that.
//
// # Scripts
//
// Each call is a [Script], a straight line of statements for one transaction and one round trip. Rules that make them correct side by side:
//
//   - Locks are taken in the order sessions, elections (by name), waiters. A session that is about to be given an election is locked against its
//     deletion, without waiting (SKIP LOCKED): one that is being deleted is passed over.
//   - An election's row is locked before its waiters are added, removed or chosen from. Only the end of a session removes waiters without:
//     its own, which nobody chooses any more.
//   - Nobody waits for what it holds: who becomes the holder leaves the queue in the same transaction.
//   - Tokens come from the database's generator, drawn when the election's row is locked. A row's own counter would start again with the row.
//   - What ends a term names session and token, what leaves a queue names the place. A request that arrives late finds another and does nothing.
//
// # Who does what when
//
// A release hands the election to the first in line, and says so in one notification; nobody else is woken. When a holder dies, its first
// waiter knows from its own renewals when the holder expires, and removes the session at that moment; all it held is handed on in
// that transaction. If the first waiter is dead as well, whoever renews next finds what is overdue. An idle waiter costs nothing at the store but its row.
//
// Notifications are hints. Each renewal compares what the session holds, and its places, with what this process believes, by numbers and checksums.
package sqlstore
