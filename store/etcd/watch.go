package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/gotenure/tenure/driver"
)

// errGap says that what happened since a revision can no longer be told: it was compacted. The state has to be read anew.
var errGap = errors.New("history was compacted")

// watchContext returns the context of a watch, which ends with the caller's. It has none of its values: with equal contexts all watches share one stream.
func (s *Store) watchContext(ctx context.Context) (context.Context, context.CancelFunc) {
	watching, cancel := context.WithCancel(s.ctx)
	stop := context.AfterFunc(ctx, cancel)
	return clientv3.WithRequireLeader(watching), func() { stop(); cancel() }
}

// follow watches from the revision after the given one, so that nothing between is missed. When behind is true something else has been written since: the
// server then sends what happened up to that moment with a delay of up to 100 ms, and reading is faster. The watch ends with the context.
func (s *Store) follow(ctx context.Context, key string, revision int64, opts ...clientv3.OpOption) (events clientv3.WatchChan, behind bool, err error) {
	events = s.client.Watch(ctx, key, append(opts, clientv3.WithRev(revision+1), clientv3.WithCreatedNotify())...)
	select {
	case r, ok := <-events:
		if err := s.broken(ctx, r, ok); err != nil {
			return nil, false, err
		}
		if !r.Created {
			return nil, true, nil // it was resumed meanwhile: the caller looks and comes again
		}
		return events, r.Header.Revision > revision, nil
	case <-ctx.Done():
		return nil, false, s.failed(ctx, "watch", ctx.Err())
	}
}

// broken returns why a watch has ended, nil while it goes on.
func (s *Store) broken(ctx context.Context, r clientv3.WatchResponse, ok bool) error {
	switch {
	case s.ctx.Err() != nil:
		return errClosed
	case ctx.Err() != nil:
		return fmt.Errorf("etcd: watch: %w", ctx.Err())
	case !ok:
		return errDisconnected
	case r.CompactRevision != 0, errors.Is(r.Err(), rpctypes.ErrFutureRev):
		return errGap
	}
	return s.failed(ctx, "watch", r.Err())
}

// Watch yields the election's record and then each later state. It follows the leader's key, or while there is none the places of candidates; those who
// only wait do not wake it.
func (s *Store) Watch(ctx context.Context, election string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		w := watching{s: s, ctx: ctx, election: election, yield: yield}
		for {
			again, err := w.round()
			if err != nil {
				yield(driver.Record{}, err)
			}
			if !again {
				return
			}
		}
	}
}

// A watching is one call of Watch.
type watching struct {
	s        *Store
	ctx      context.Context
	election string
	yield    func(driver.Record, error) bool
	told     bool
	last     driver.Record
	enough   bool // the caller wants no more
}

// tell yields a record unless it is the last one again.
func (w *watching) tell(r driver.Record) {
	if w.told && sameState(r, w.last) {
		return
	}
	w.told, w.last = true, r
	w.enough = !w.yield(r, nil)
}

func sameState(a, b driver.Record) bool {
	return a.Session == b.Session && a.Token == b.Token && bytes.Equal(a.Value, b.Value)
}

// round reads the state and follows it until it has to be read again, which again says.
func (w *watching) round() (again bool, err error) {
	down, back := w.s.line.down(), w.s.line.back()
	ctx, cancel := w.s.watchContext(w.ctx)
	defer cancel()
	go func() { // also while the client waits for an answer, which it does in silence
		select {
		case <-down:
			cancel()
		case <-ctx.Done():
		}
	}()
	defer func() { err = w.ended(err, down) }()
	r, revision, err := w.s.read(ctx, w.election)
	if err != nil {
		return false, err
	}
	w.tell(r)
	if w.enough {
		return false, nil
	}
	key, opts := w.s.layout.key(w.election, r.Session), []clientv3.OpOption(nil)
	if !r.Held() {
		from, to := w.s.layout.candidates(w.election)
		key, opts = from, []clientv3.OpOption{to, clientv3.WithFilterDelete()}
	}
	events, behind, err := w.s.follow(ctx, key, revision, opts...)
	switch {
	case errors.Is(err, errGap):
		return true, nil
	case err != nil:
		return false, err
	case events == nil:
		return true, nil
	case behind:
		now, _, err := w.s.read(ctx, w.election)
		if err != nil {
			return false, err
		}
		if !sameState(now, r) {
			return true, nil
		}
	}
	for {
		select {
		case response, ok := <-events:
			err := w.s.broken(ctx, response, ok)
			if errors.Is(err, errGap) {
				return true, nil
			}
			if err != nil {
				return false, err
			}
			if again, err := w.digest(r, response.Events); again || err != nil || w.enough {
				return again, err
			}
		case <-back:
			return true, nil // it may be to other data, in which the watch would wait for a revision to come
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// ended tells whose end it was that ended the watch.
func (w *watching) ended(err error, down <-chan struct{}) error {
	switch {
	case err == nil:
		return nil
	case w.ctx.Err() != nil:
		return fmt.Errorf("etcd: watch: %w", w.ctx.Err())
	case w.s.ctx.Err() != nil:
		return errClosed
	case errors.Is(err, context.Canceled) && isClosed(down):
		return errDisconnected
	}
	return err
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// digest tells what the events say of the leader r. When it returns true the state has to be read again.
func (w *watching) digest(r driver.Record, events []*clientv3.Event) (again bool, err error) {
	for _, e := range events {
		switch {
		case !r.Held():
			if w.s.layout.candidate(w.election, string(e.Kv.Key)) {
				return true, nil
			}
		case e.Type == clientv3.EventTypeDelete || uint64(e.Kv.CreateRevision) != r.Token:
			return true, nil
		case !intact(e.Kv):
			return false, corrupt(e.Kv)
		default:
			r.Value = e.Kv.Value
			if w.tell(r); w.enough {
				return false, nil
			}
		}
	}
	return false, nil
}

// A line says when the connection to the cluster is down, and when there is another. The client mends it in silence, however long that takes.
type line struct {
	mu      sync.Mutex
	lost    chan struct{} // closed while it is down
	another chan struct{} // closed and replaced when there is another
	stopped chan struct{}
}

// downAfter is how long a connection may take to come back before those who watch are told.
const downAfter = time.Second

func (l *line) start(ctx context.Context, conn *grpc.ClientConn) {
	l.lost, l.another, l.stopped = make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(l.stopped)
		down, ended := false, false
		for ctx.Err() == nil {
			state := conn.GetState()
			if state == connectivity.Ready && ended {
				ended = false
				l.renew()
			}
			if good := state == connectivity.Ready || state == connectivity.Idle; good == down {
				if !good && changes(ctx, conn, state) {
					continue
				}
				down = !good
				l.set(down)
			}
			if conn.WaitForStateChange(ctx, state) && state == connectivity.Ready {
				ended = true
			}
		}
	}()
}

// changes reports whether the state of a connection gets better soon.
func changes(ctx context.Context, conn *grpc.ClientConn, state connectivity.State) bool {
	ctx, cancel := context.WithTimeout(ctx, downAfter)
	defer cancel()
	for conn.WaitForStateChange(ctx, state) {
		if state = conn.GetState(); state == connectivity.Ready {
			return true
		}
	}
	return false
}

func (l *line) set(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if down {
		close(l.lost)
	} else {
		l.lost = make(chan struct{})
	}
}

func (l *line) renew() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.another)
	l.another = make(chan struct{})
}

// back returns a channel that is closed when the connection has ended and there is another.
func (l *line) back() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.another
}

// down returns a channel that is closed when the connection is down, now or later.
func (l *line) down() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

func (l *line) wait() { <-l.stopped }
