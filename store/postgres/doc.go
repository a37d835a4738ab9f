// Package postgres records elections in PostgreSQL, version 12 or newer.
//
//	store, err := postgres.Open(ctx, "postgres://app@db.example:5432/app")
//
// # What it promises
//
// Tokens come from a sequence and expiry from the server's clock. A member that resigns hands over to the next in line in one commit and one
// notification; the others are not woken. The notification is the proof, by a nonce that only who may read the queue knows: an operator who deletes the record
// while one is on its way is noticed at the next renewal, as in any other term. A member that dies is replaced within its TTL. Each member costs one
// round trip every third of its TTL, however many elections it holds or waits for. Info's Caveats say what asynchronous replication and clocks that jump can break.
//
// # Connections
//
// A store uses up to 6 connections of its own: 1 that listens, 1 that renews, and up to 4 (pool_max_conns) for the rest. Behind PgBouncer, or another pooler
// in transaction mode, notifications do not arrive; the store finds that out, warns once and asks every second instead while something waits (parameter poll).
// The same holds while the listening connection is down. Whatever the database's defaults are, statements run at READ COMMITTED and with durable commits.
//
// # Schema and privileges
//
// Everything is in one schema, "tenure" unless parameter schema says another. It is created on demand by a role with CREATE on the database; a role with CREATE
// on an existing schema of that name will do. Or an administrator runs what [Schema] returns (tenure store schema), or runs [Init] (tenure store init), and grants roles
// that take part
//
//	GRANT USAGE ON SCHEMA tenure TO app;
//	GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tenure TO app;
//	GRANT USAGE ON ALL SEQUENCES IN SCHEMA tenure TO app;
//
// To look (Get, List, Watch) USAGE on the schema and SELECT on meta, sessions and elections are enough. The view tenure.status shows people who leads. The table
// waiters is for those alone who take part: who can read it can feign a handover.
//
// All roles that take part trust each other: each can change every row. Two groups that do not need two schemas.
//
// # Connection-bound sessions
//
// With bound=true (Options.Bound) a session also ends when its process's listening connection does, which the kernel closes when the process dies: the first
// in line finds that out within about 300 ms, instead of waiting for the TTL. The session holds an advisory lock on that connection;
// who waits looks for it in pg_locks. All members of an election should have it, else those who do not wait for the TTL.
//
// It is for fast replacement of dead processes, and costs safety when the connection breaks and the process lives: a backend that is terminated, a
// firewall that drops the connection. The server lets the next one lead at once, while the old leader is told at its next renewal, which it makes at once
// when it notices; a connection that was cut silently is noticed within 10 s. For that time two lead. What they write must be guarded by the token (package fence).
// A host that vanishes from the network leaves its connection open at the server: then the TTL decides, as without.
package postgres
