package etcd

import (
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Old servers may tell a watch that began at one that lagged behind what was before it: the end of an earlier term of the session that leads proves nothing (S1).
func TestEventsOfBefore(t *testing.T) {
	t.Parallel()
	own := &mvccpb.KeyValue{Key: []byte("e/2"), CreateRevision: 40, ModRevision: 40, Lease: 2}
	w := &wait{key: "e/1", created: 30, revision: 40, own: own, sole: true}
	told := func(revision int64) bool {
		return w.digest([]*clientv3.Event{{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte("e/1"), ModRevision: revision}}})
	}
	if told(20) || w.gone || w.proven != 0 {
		t.Errorf("the end of an earlier term ends the wait: %+v", w)
	}
	if !told(41) || !w.gone || w.proven != 41 {
		t.Errorf("the end of the term does not end the wait: %+v", w)
	}
}
