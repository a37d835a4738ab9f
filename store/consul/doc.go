// Package consul is a store in Consul's key/value store.
//
// A session of the contract is a Consul session with a TTL and without health checks; an election is a key that the session holds as a lock, with the
// flags of the lock that Consul's own client makes (api.Lock, consul lock): clients of both kinds can stand in one election.
//
//	election E        key PREFIX + E, locked by the leader's session; its value is what the leader publishes
//	session S of M    key PREFIX + "_tenure/members/" + M + "/" + S, locked by S; its value are requests to resign
//	heir of S for E   the key of S + "/" + E, locked by the session that S is to give the election to; its value is what that would publish
//
// The token is the ModifyIndex of the write that took the lock: an index of Consul's Raft log, which no deletion takes back. A leader that publishes another value
// writes the token before it, because that write has an index of its own.
//
// # Time
//
// Consul ends a session that is not renewed between one and two TTLs after the last renewal. A Session counts its own deadline, one TTL from before the last
// renewal that was granted was sent, and is lost then whatever the server says.
//
// Sessions have no health checks, since those would end a session before its TTL: a node that gossip holds for dead would lose an
// election that its leader still trusts. The lock-delay, which keeps a lock from everybody after its session was ended, is none by default: Consul has it for
// holders that count no deadline, and a session that lapses here has been without work for a whole TTL. What it still protects from is an administrator who destroys the session
// of a leader that cannot be told. Options.LockDelay sets it.
package consul
