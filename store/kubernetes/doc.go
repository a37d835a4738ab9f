// Package kubernetes is a store on Kubernetes: each election is a Lease (coordination.k8s.io/v1), the object that client-go's leaderelection uses, so that both can stand in
// one election.
//
// What it promises, and by what:
//
//  1. Tokens. The token of a term is the resourceVersion that the acquiring write replaced; that write puts it into an annotation. The API server lets each version be
//     replaced once, versions grow with every write to the cluster, and they survive the deletion of the Lease.
//  2. Expiry. A Lease does not run out by itself, and no two clocks are compared: whoever wants it takes it when it has stood unchanged, before the taker's own eyes and on its own
//     clock, for the duration that its holder gave it.
//  3. Push. Followers and leaders watch the Lease. A follower sends nothing while it waits, a leader one write for each renewal.
//  4. Others. Labels, annotations and fields that this package does not know stay as they are. Each renewal moves renewTime to another second, which is
//     the least that client-go notices.
//
// Who should not use it: programs that need more than a few hundred elections with short TTLs, for each renewal is a write to the cluster's etcd; and those
// for which the API server is not always there, as it may not be while the cluster is upgraded.
package kubernetes
