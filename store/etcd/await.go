package etcd

import (
	"context"
	"errors"
	"fmt"
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
	gone, err := s.await(ctx, w)
	s.mu.Lock()
	w.awaited = false
	w.gone = w.gone || gone
	s.mu.Unlock()
	return s.failed(err)
}

// maxLooks is how often a watch is begun anew because something was written meanwhile: on a busy cluster that may be always, and then a delay of
// 100 ms is less than the trouble.
const maxLooks = 3

// await reports whether the key that it waits for is gone; when it returns nil all the same, the state has to be read.
func (s *session) await(ctx context.Context, w *wait) (gone bool, err error) {
	s.mu.Lock()
	stirred := s.stirred
	s.mu.Unlock()
	for look := 1; ; look++ {
		watching, cancel := s.store.watchContext(ctx)
		defer cancel()
		defer context.AfterFunc(s.ctx, cancel)()
		events, behind, err := s.store.follow(watching, w.key, w.revision, clientv3.WithFilterPut())
		switch {
		case errors.Is(err, errGap):
			return false, nil
		case err != nil:
			return false, s.ended(ctx, err)
		case events == nil:
			return false, nil
		case behind:
			r, err := s.store.get(watching, w.key, clientv3.WithKeysOnly())
			if err != nil {
				return false, s.ended(ctx, err)
			}
			if len(r.Kvs) == 0 || r.Kvs[0].CreateRevision != w.created {
				return true, nil
			}
			if look < maxLooks {
				w.revision = r.Header.Revision
				cancel()
				continue
			}
		}
		for {
			select {
			case r, ok := <-events:
				err := s.store.broken(watching, r, ok)
				if errors.Is(err, errGap) {
					return false, nil
				}
				if err != nil {
					return false, s.ended(ctx, err)
				}
				for _, e := range r.Events {
					if e.Type == clientv3.EventTypeDelete {
						return true, nil
					}
				}
			case <-stirred:
				return false, nil
			case <-watching.Done():
				return false, s.ended(ctx, watching.Err())
			}
		}
	}
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
const calm = 100 * time.Millisecond

// unwatchKey ends the watch of a key. The mutex is held.
func (s *session) unwatchKey(n *standing) {
	if n.endWatch != nil {
		time.AfterFunc(calm, n.endWatch)
		n.endWatch = nil
	}
}

// watchKey watches the key of an election that the session holds, so that it learns at once when somebody deletes or overwrites it. The mutex is held.
func (s *session) watchKey(n *standing, revision int64) {
	if n.endWatch != nil {
		return
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(s.ctx))
	n.endWatch = cancel
	created := n.created
	go func() {
		defer cancel()
		select {
		case <-time.After(calm):
		case <-ctx.Done():
			return
		}
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
	}()
}
