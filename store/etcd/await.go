package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Await waits until the candidate before the session's own is gone; without a place in the queue, until the leader is.
func (s *session) Await(ctx context.Context, election string) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	n := s.standings[election]
	if n == nil || n.wait == nil || n.wait.gone {
		s.mu.Unlock()
		return nil
	}
	w := n.wait
	w.awaited = true
	s.mu.Unlock()
	err := s.await(ctx, w)
	s.mu.Lock()
	w.awaited = false
	s.mu.Unlock()
	return s.failed(err)
}

// maxLooks is how often a watch is begun anew because something was written meanwhile: on a busy cluster that may be always, and then a delay of
// 100 ms is less than the trouble.
const maxLooks = 3

// await waits until the wait is over, or the state has to be read.
func (s *session) await(ctx context.Context, w *wait) error {
	s.mu.Lock()
	stirred := s.stirred
	s.mu.Unlock()
	for look := 1; ; look++ {
		watching, cancel := s.store.watchContext(ctx)
		defer cancel()
		defer context.AfterFunc(s.ctx, cancel)()
		key, opts := w.scope()
		events, behind, err := s.store.follow(watching, key, w.revision, opts...)
		switch {
		case errors.Is(err, errGap):
			return nil
		case err != nil:
			return s.ended(ctx, err)
		case events == nil:
			return nil
		case behind:
			there, revision, err := s.stands(watching, w)
			if err != nil {
				return s.ended(ctx, err)
			}
			if !there {
				return nil
			}
			if look < maxLooks {
				w.revision = revision
				cancel()
				continue
			}
		}
		for {
			select {
			case r, ok := <-events:
				err := s.store.broken(watching, r, ok)
				if errors.Is(err, errGap) {
					return nil
				}
				if err != nil {
					return s.ended(ctx, err)
				}
				s.mu.Lock()
				over := w.digest(r.Events)
				s.mu.Unlock()
				if over {
					return nil
				}
			case <-stirred:
				return nil
			case <-watching.Done():
				return s.ended(ctx, watching.Err())
			}
		}
	}
}

// stands reports whether the keys of a wait are there as they were, and at which revision.
func (s *session) stands(ctx context.Context, w *wait) (there bool, revision int64, err error) {
	reads := []clientv3.Op{clientv3.OpGet(w.key)} // with the lease, which etcd 3.7 leaves out of keys alone
	if w.sole {
		reads = append(reads, clientv3.OpGet(string(w.own.Key)))
	}
	r, err := s.store.txn(ctx, "read "+strconv.Quote(w.key), nil, reads, nil)
	if err != nil {
		return false, 0, err
	}
	before := only(r.Responses[0].GetResponseRange().Kvs)
	if before == nil || before.CreateRevision != w.created {
		s.mu.Lock()
		w.gone = true
		s.mu.Unlock()
		return false, 0, nil
	}
	if !intact(before) {
		return false, 0, nil
	}
	if w.sole {
		own := only(r.Responses[1].GetResponseRange().Kvs)
		if own == nil || own.CreateRevision != w.own.CreateRevision || !intact(own) {
			return false, 0, nil
		}
	}
	return true, r.Header.Revision, nil
}

// scope returns what to watch: the key that has to go and, when nobody else is before it, the session's own. That is one watch, so that its events are in order: when the
// leader's key goes and nothing was told of the session's, it leads. Two keys are watched as a range; what lies between them is told to one candidate only, the next.
func (w *wait) scope() (key string, opts []clientv3.OpOption) {
	switch {
	case w.own == nil:
		return w.key, []clientv3.OpOption{clientv3.WithFilterPut()}
	case !w.sole:
		return w.key, nil
	}
	own := string(w.own.Key)
	return min(w.key, own), []clientv3.OpOption{clientv3.WithRange(max(w.key, own) + "\x00")}
}

// digest takes in events of the scope, and reports whether the wait is over or the state has to be read. The session's mutex is held.
func (w *wait) digest(events []*clientv3.Event) (over bool) {
	for _, e := range events {
		switch key := string(e.Kv.Key); {
		case e.Kv.ModRevision <= w.revision:
			// Servers before 3.5.22 and 3.6.2 may tell what was before, when the watch began at one that lagged behind (etcd-io/etcd#20221).
		case key != w.key && w.own != nil && key == string(w.own.Key):
			w.proven, w.sole = 0, false // somebody else has written it
			return true
		case key != w.key:
		case e.Type == clientv3.EventTypeDelete:
			w.gone, over = true, true
			if w.sole {
				w.proven = e.Kv.ModRevision
			}
		case !w.sole || !intact(e.Kv):
			over = true // its owner says that it leads, or somebody else has written it so that it would never lapse
		}
	}
	return over
}

// ended tells whose end it was that ended a wait.
func (s *session) ended(ctx context.Context, err error) error {
	if cause := s.ready(ctx); cause != nil {
		return cause
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("etcd: wait: %w", errDisconnected)
	}
	return err
}

// calm is by how much watches of keys that are held begin and end later than they could: a handover goes first. Nothing is missed, for a watch begins with what has
// happened since a revision.
const calm = 25 * time.Millisecond

// unwatchKey ends the watch of a key. The mutex is held.
func (s *session) unwatchKey(n *standing) {
	if n.endWatch != nil {
		n.endWatch()
		n.endWatch = nil
	}
}

// watchKey watches the key of an election that the session holds, so that it learns at once when somebody deletes or overwrites it. The mutex is held.
func (s *session) watchKey(n *standing, revision int64) {
	if n.endWatch != nil {
		return
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(s.ctx))
	created := n.created
	begin := time.AfterFunc(calm, func() {
		defer cancel()
		for r := range s.store.client.Watch(ctx, n.key, clientv3.WithRev(revision+1)) {
			harmed := r.Err() != nil
			for _, e := range r.Events {
				harmed = harmed || e.Type == clientv3.EventTypeDelete || !intact(e.Kv)
			}
			if harmed {
				break
			}
		}
		if ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		mine := n.created == created && n.endWatch != nil
		if mine {
			n.endWatch = nil // the next KeepAlive begins another, should the key be there
		}
		s.mu.Unlock()
		if mine {
			s.heard()
		}
	})
	n.endWatch = func() {
		if begin.Stop() {
			cancel() // a term as short as that is not watched
			return
		}
		time.AfterFunc(calm, cancel)
	}
}

// herald writes the key of a session that has come to lead as it is. That tells whoever is next, who watches it, that nobody else is before them. When it fails the
// next handover costs a read.
func (s *session) herald(key string, created int64) {
	same := []clientv3.OpOption{clientv3.WithIgnoreValue(), clientv3.WithIgnoreLease()}
	_, _ = s.store.txn(s.ctx, "herald "+strconv.Quote(key), []clientv3.Cmp{term(key, uint64(created))}, []clientv3.Op{clientv3.OpPut(key, "", same...)}, nil)
}
