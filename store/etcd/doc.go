// Package etcd is a store on etcd 3.5 or newer, with the official client.
//
// Elections lie in etcd as the election recipe of etcd itself lays them out (package concurrency, etcdctl elect, the v3election service), so that members of
// this library and clients of that recipe can stand in one election. A candidate's key is the election's name, a slash, and the ID of its lease
// in hexadecimal digits; its value is what the candidate publishes; the lowest create revision leads. It is
//
//   - the token: the create revision of the leader's key, which is a revision of the whole cluster and never comes again, not even after
//     keys were deleted;
//   - the session: one lease for all elections of a member, renewed by one message;
//   - the queue: a candidate watches the one before it, and no other.
//
// Beside the recipe's keys the package keeps, attached to the same leases, the members' IDs and requests to resign below "_tenure/".
//
// [Store.Guard] makes a transaction of the application's own conditional on a term that lasts.
package etcd
