// Package zookeeper is a store on ZooKeeper 3.5 or newer, with the client github.com/go-zookeeper/zk.
//
// Elections lie in ZooKeeper as LeaderLatch of Apache Curator lays them out, so that members of this library and latches can stand in one election.
// A candidate is an ephemeral sequential node below the election's, with a unique part in its name by which it is found again when the answer to its
// creation is lost; its data is the member's ID, and behind a NUL byte what the member publishes, if anything. It is never written again: what a leader publishes
// later is the data of the election's node, behind the leader's token. The lowest number leads. It is
//
//   - the token: the czxid of the leader's node, which is a transaction of the whole ensemble and never comes again, not even after nodes were deleted;
//   - the session: one connection and one ZooKeeper session for all elections of a member;
//   - the queue: a candidate watches the one before it, and no other.
//
// An election's name is its path: slashes separate nodes, and what ZooKeeper does not allow in a path is percent-encoded. Nodes above candidates are
// containers, which ZooKeeper removes when they are empty; they are made again when they are needed. Members' IDs and requests to resign lie below "_tenure".
//
// # Renewal
//
// A server answers a client's ping by itself, also while it is cut off from the others, and tells the leader of the ensemble later. So pings prove nothing
// here, and the client sends none: a renewal is a transaction that a majority has to commit, and what it grants is counted from the latest message of
// which the leader must have heard by then. The ZooKeeper session is therefore half as long again as the TTL.
package zookeeper
