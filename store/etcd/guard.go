package etcd

import clientv3 "go.etcd.io/etcd/client/v3"

// Guard returns a condition for a transaction of the application's own in the same cluster: it holds as long as the term with this token, of this
// session, lasts. Check and write are then one step:
//
//	client.Txn(ctx).If(store.Guard(term.Election(), term.Session(), term.Token())).Then(clientv3.OpPut(key, value)).Commit()
//
// A transaction whose Succeeded is false has changed nothing, because the term was over. Unlike a guard that remembers the greatest token it has seen,
// this one refuses a leader that is over even while nobody has followed it.
func (s *Store) Guard(election, session string, token uint64) clientv3.Cmp {
	return term(s.layout.key(election, session), token)
}

// term compares the create revision of a candidate's key. Token 0 would be met by a key that is missing, and is met by none here.
func term(key string, token uint64) clientv3.Cmp {
	revision := int64(token)
	if revision <= 0 {
		revision = -1
	}
	return clientv3.Compare(clientv3.CreateRevision(key), "=", revision)
}
