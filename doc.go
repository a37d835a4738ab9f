// Package tenure picks one leader out of many replicas, through renewable leases in a store that the program already runs.
//
// A [Member] joins a store and stands in elections. Who wins holds a [Term]: a context that ends before the lease can be another's,
// and a fencing token that grows from term to term. [Member.Lead] is the usual entry: it runs a function whenever this member leads.
//
//	m, err := tenure.Join(ctx, store, tenure.Config{ID: "worker-7"})
//	if err != nil {
//		return err
//	}
//	defer m.Leave(context.Background())
//	return m.Lead(ctx, "nightly-report", func(ctx context.Context, term *tenure.Term) error {
//		return report(ctx, term.Token())
//	})
//
// Stores are in the modules below store/: SQLite, PostgreSQL and others; store/memory serves the members of one process.
//
// # What it promises
//
//  1. At most one member believes that it leads an election, as long as no process is stopped between its last [Term.Check]
//     and the effect of its work. Against that one gap there are tokens: a resource that remembers the greatest token it has seen, and
//     refuses smaller ones, cannot be written by an old leader (package fence).
//  2. Tokens only grow, from each term of an election to the next.
//  3. A term's context is cancelled at [Term.Deadline] at the latest, whatever the store or the network does; the deadline is counted from before the last
//     successful renewal was sent, on a clock that counts the time for which the machine slept.
//  4. An election is released after the work has returned, never before.
//  5. A dead leader is replaced within its TTL; one that resigns, within one commit and one notification of the store.
//  6. Errors of the store are retried for ever. Only the caller's context, a return of the work, or an impossible configuration end a Lead.
//
// # Who should not use it
//
// A program that runs only once needs no election. Work that a database transaction can claim row by row (SELECT … FOR UPDATE SKIP LOCKED) needs
// a queue, not a leader. Consensus on data needs Raft, not a lease.
package tenure
