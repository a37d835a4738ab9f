package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/gotenure/tenure/driver"
)

// A standing is what a session knows of its part in an election. Its fields are guarded by the session's mutex.
type standing struct {
	election, key string
	created       int64 // create revision of the session's key, as last seen; 0: it has none
	held          bool  // a call has reported that the session holds it
	wait          *wait // after a refusal
	calls         int   // under way
	generation    uint64
	endWatch      func() // ends the watch of the key that is held; nil: there is none

	// Requests that add the key and whose callers may have given up. landed is closed when there is none.
	flying int
	landed chan struct{}
}

// A wait is what has to go before Acquire is worth trying.
type wait struct {
	key      string
	created  int64
	revision int64 // at which it was there
	gone     bool
	awaited  bool // an Await is under way

	own    *mvccpb.KeyValue // the session's own key; nil: it has none
	sole   bool             // nobody but the leader was before it
	proven int64            // the revision at which the leader's key was gone and its own was there; 0: that is not known
}

// grace is how long a request that adds a key is followed after its caller has given up, so that Release knows what became of it.
const grace = time.Second

// enter begins a call for an election; leave ends it.
func (s *session) enter(election string) *standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.standings[election]
	if n == nil {
		n = &standing{election: election, key: s.store.layout.key(election, s.id)}
		s.standings[election] = n
	}
	n.calls++
	n.generation++
	return n
}

func (s *session) leave(n *standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n.calls--
	n.generation++
	s.tidy(n)
}

// tidy forgets a standing that says nothing. The mutex is held.
func (s *session) tidy(n *standing) {
	if n.calls == 0 && n.flying == 0 && n.created == 0 && !n.held && n.wait == nil {
		delete(s.standings, n.election)
	}
}

// A view is an election at one revision, as far as it concerns a session.
type view struct {
	own, first *mvccpb.KeyValue
	before     *mvccpb.KeyValue // the last one before own; nil: not known
	revision   int64
}

// Acquire takes the election, or with Queue a place in its queue, unless the session has it already.
func (s *session) Acquire(ctx context.Context, bid driver.Bid) (driver.Record, error) {
	if err := checkElection(bid.Election); err != nil {
		return driver.Record{}, err
	}
	if len(bid.Value) > maxValue {
		return driver.Record{}, fmt.Errorf("etcd: %w: value of %q has %d bytes: shorten it to at most %d", driver.ErrInvalid, bid.Election, len(bid.Value), maxValue)
	}
	if err := s.ready(ctx); err != nil {
		return driver.Record{}, err
	}
	n := s.enter(bid.Election)
	defer s.leave(n)
	r, err := s.acquire(ctx, n, bid)
	return r, s.failed(err)
}

func (s *session) acquire(ctx context.Context, n *standing, bid driver.Bid) (driver.Record, error) {
	empty := int64(0) // the revision at which the election was seen to be vacant although there are keys in its range
	for {
		v, err := s.look(ctx, n)
		if err == nil && v.own == nil {
			v, err = s.add(ctx, n, bid, empty)
		}
		switch {
		case errors.Is(err, driver.ErrCorrupt):
			return driver.Record{}, errors.Join(err, s.remove(ctx, n, v.own))
		case err != nil:
			return driver.Record{}, err
		case v.own != nil && !intact(v.own):
			// Somebody wrote it without the lease. It begins anew, with another token.
			if err := s.remove(ctx, n, v.own); err != nil {
				return driver.Record{}, err
			}
		case v.own == nil && v.first == nil:
			empty = v.revision
		case v.first == nil:
			// The session's own key has gone between two reads.
		case v.own != nil && v.first.CreateRevision == v.own.CreateRevision:
			published, err := s.publish(ctx, v.own, bid)
			if err != nil {
				return driver.Record{}, err
			}
			if published {
				s.claim(n, v)
				return driver.Record{Election: bid.Election, Leader: s.member, Session: s.id, Token: uint64(v.own.CreateRevision), Value: bytes.Clone(bid.Value)}, nil
			}
		default:
			return s.refuse(ctx, n, v)
		}
	}
}

// look reads what a session that has a key needs to know; without own in the view it has none. After a watch that has proven who leads there is nothing to read. What an
// operator has deleted since, the watch of the key tells that begins with the next revision.
func (s *session) look(ctx context.Context, n *standing) (v view, err error) {
	s.mu.Lock()
	created, held := n.created, n.held
	if w := n.wait; w != nil && w.proven != 0 && w.own.CreateRevision == created {
		v = view{own: w.own, first: w.own, revision: w.proven}
		n.wait = nil
	}
	s.mu.Unlock()
	if created == 0 || v.own != nil {
		return v, nil
	}
	var head *pb.RangeResponse
	var tail []*mvccpb.KeyValue
	if held {
		r, err := s.store.get(ctx, n.key)
		if err != nil {
			return view{}, err
		}
		v.revision, v.own = r.Header.Revision, only(r.Kvs)
	} else {
		from, to := s.store.layout.candidates(n.election)
		last := append(byAge(to, clientv3.SortDescend, 1), clientv3.WithMaxCreateRev(created-1))
		r, err := s.store.txn(ctx, "read "+strconv.Quote(n.key), nil,
			[]clientv3.Op{clientv3.OpGet(n.key), clientv3.OpGet(from, byAge(to, clientv3.SortAscend, 1)...), clientv3.OpGet(from, last...)}, nil)
		if err != nil {
			return view{}, err
		}
		v.revision, v.own = r.Header.Revision, only(r.Responses[0].GetResponseRange().Kvs)
		head, tail = r.Responses[1].GetResponseRange(), r.Responses[2].GetResponseRange().Kvs
	}
	if v.own == nil || v.own.CreateRevision != created {
		s.mu.Lock()
		n.created, n.held, n.wait = 0, false, nil
		s.unwatchKey(n)
		if v.own != nil {
			n.created = v.own.CreateRevision
		}
		s.mu.Unlock()
		if v.own == nil {
			return view{}, nil
		}
		return s.look(ctx, n) // a call that its caller had given up has made another key
	}
	if held {
		v.first = v.own
		return v, nil
	}
	return s.complete(ctx, n, v, head, tail)
}

// only returns the one key that was read; nil when it is not there.
func only(kvs []*mvccpb.KeyValue) *mvccpb.KeyValue {
	if len(kvs) == 0 {
		return nil
	}
	return kvs[0]
}

// complete fills in the first candidate and the one before the session's own, from what was read and otherwise by reading more. When the session has a key the revision stays
// that at which it was there: who watches from it on misses nothing that happens between two reads.
func (s *session) complete(ctx context.Context, n *standing, v view, head *pb.RangeResponse, tail []*mvccpb.KeyValue) (view, error) {
	first, known := s.store.layout.pick(n.election, head.Kvs, head.More)
	var err error
	if !known {
		var later int64
		if first, later, err = s.store.first(ctx, n.election); err != nil {
			return v, err
		}
		if v.own == nil {
			v.revision = later
		}
	}
	v.first = first
	if first != nil && !intact(first) && (v.own == nil || first.CreateRevision != v.own.CreateRevision) {
		return v, corrupt(first)
	}
	if v.own == nil || first == nil || first.CreateRevision == v.own.CreateRevision {
		return v, nil
	}
	for _, kv := range tail {
		if s.store.layout.candidate(n.election, string(kv.Key)) && kv.CreateRevision < v.own.CreateRevision {
			v.before = kv
			return v, nil
		}
	}
	v.before, _, err = s.store.end(ctx, n.election, clientv3.SortDescend, v.own.CreateRevision)
	if errors.Is(err, driver.ErrCorrupt) {
		err = nil // it is not at the head: whoever is next will say so
	}
	return v, err
}

// add makes a key for the session in one request that also tells who is before it: with Queue always, otherwise only when there is no candidate. When
// empty is not 0, there was none at that revision, only keys of other elections in the same range.
func (s *session) add(ctx context.Context, n *standing, bid driver.Bid, empty int64) (v view, err error) {
	from, to := s.store.layout.candidates(n.election)
	end := s.store.layout.election(n.election) + "g"
	condition := clientv3.Compare(clientv3.CreateRevision(n.key), "=", 0)
	then := []clientv3.Op{clientv3.OpPut(n.key, string(bid.Value), clientv3.WithLease(s.lease))}
	head := clientv3.OpGet(from, byAge(to, clientv3.SortAscend, 1)...)
	switch {
	case bid.Queue:
		then = append(then, head, clientv3.OpGet(from, byAge(to, clientv3.SortDescend, 2)...))
	case empty == 0:
		condition = clientv3.Compare(clientv3.CreateRevision(from), "=", 0).WithRange(end)
	default:
		condition = clientv3.Compare(clientv3.ModRevision(from), "<", empty+1).WithRange(end)
	}
	r, err := s.fly(ctx, n, []clientv3.Cmp{condition}, then, []clientv3.Op{clientv3.OpGet(n.key), head})
	if err != nil {
		return view{}, err
	}
	v.revision = r.Header.Revision
	if !r.Succeeded {
		if v.own = only(r.Responses[0].GetResponseRange().Kvs); v.own != nil {
			s.noted(n, v.own.CreateRevision)
		}
		return s.complete(ctx, n, v, r.Responses[1].GetResponseRange(), nil)
	}
	v.own = &mvccpb.KeyValue{Key: []byte(n.key), Value: bytes.Clone(bid.Value), CreateRevision: v.revision, ModRevision: v.revision, Lease: int64(s.lease)}
	s.noted(n, v.revision)
	if !bid.Queue {
		v.first = v.own
		return v, nil
	}
	return s.complete(ctx, n, v, r.Responses[1].GetResponseRange(), r.Responses[2].GetResponseRange().Kvs)
}

// noted remembers the create revision of the session's key.
func (s *session) noted(n *standing, created int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.created != created {
		n.created, n.held = created, false
		s.unwatchKey(n)
	}
}

// fly makes the transaction that adds a key. When its caller gives up, it goes on for a moment, so that Release can wait for it and then see what it did.
func (s *session) fly(ctx context.Context, n *standing, condition []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	s.mu.Lock()
	if n.flying == 0 {
		n.landed = make(chan struct{})
	}
	n.flying++
	s.mu.Unlock()
	type answer struct {
		r   *clientv3.TxnResponse
		err error
	}
	answers := make(chan answer, 1)
	travel, cancel := context.WithCancel(s.ctx)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	go func() {
		r, err := s.store.txn(travel, "stand in "+strconv.Quote(n.election), condition, then, otherwise)
		if stop() {
			cancel()
		}
		s.mu.Lock()
		if n.flying--; n.flying == 0 {
			close(n.landed)
			s.tidy(n)
		}
		s.mu.Unlock()
		answers <- answer{r, err}
	}()
	select {
	case a := <-answers:
		return a.r, a.err
	case <-ctx.Done():
		return nil, failure(ctx, "stand in "+strconv.Quote(n.election), ctx.Err())
	}
}

// publish makes the value of the session's own key that of the bid. It reports false when the key is not there any more.
func (s *session) publish(ctx context.Context, own *mvccpb.KeyValue, bid driver.Bid) (bool, error) {
	if bytes.Equal(own.Value, bid.Value) {
		return true, nil
	}
	key := string(own.Key)
	r, err := s.store.txn(ctx, "publish in "+strconv.Quote(bid.Election), []clientv3.Cmp{term(key, uint64(own.CreateRevision))},
		[]clientv3.Op{clientv3.OpPut(key, string(bid.Value), clientv3.WithLease(s.lease))}, nil)
	if err != nil {
		return false, err
	}
	return r.Succeeded, nil
}

// claim notes that the session is told that it holds the election, watches its key, and tells whoever is next.
func (s *session) claim(n *standing, v view) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !n.held {
		go s.herald(n.key, v.own.CreateRevision)
	}
	n.created, n.held, n.wait = v.own.CreateRevision, true, nil
	s.watchKey(n, v.revision)
}

// refuse returns ErrHeld with who holds the election, and notes whom to wait for.
func (s *session) refuse(ctx context.Context, n *standing, v view) (driver.Record, error) {
	before := v.first
	if v.own != nil && v.before != nil {
		before = v.before
	}
	s.mu.Lock()
	n.held = false
	n.wait = &wait{
		key: string(before.Key), created: before.CreateRevision, revision: v.revision,
		own: v.own, sole: v.own != nil && v.before != nil && v.before.CreateRevision == v.first.CreateRevision,
	}
	s.mu.Unlock()
	r, err := s.store.record(ctx, n.election, v.first, v.revision)
	if err != nil {
		return driver.Record{}, err
	}
	return r, driver.ErrHeld
}

// remove deletes a key of the session's that must not stay, unless it has changed since it was read.
func (s *session) remove(ctx context.Context, n *standing, own *mvccpb.KeyValue) error {
	if own == nil {
		return nil
	}
	_, err := s.store.txn(ctx, "give up "+strconv.Quote(n.key), []clientv3.Cmp{term(n.key, uint64(own.CreateRevision))}, []clientv3.Op{clientv3.OpDelete(n.key)}, nil)
	if err == nil {
		s.drop(n, own.CreateRevision)
	}
	return err
}

// drop notes that the session's key of that create revision is gone.
func (s *session) drop(n *standing, created int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.created != created {
		return
	}
	n.created, n.held, n.wait = 0, false, nil
	s.unwatchKey(n)
}

// Release deletes the session's key, if it is of the term with this token; 0: of the term, or the place in the queue, that it finds.
func (s *session) Release(ctx context.Context, election string, token uint64) error {
	if _, cancel, err := s.store.begin(ctx); err != nil {
		return err
	} else {
		cancel()
	}
	s.mu.Lock()
	over := s.lost
	s.mu.Unlock()
	if over {
		return nil
	}
	n := s.enter(election)
	defer s.leave(n)
	if token == 0 {
		own, err := s.find(ctx, n)
		if err != nil {
			return err
		}
		if own == nil {
			s.mu.Lock()
			created := n.created
			n.wait = nil
			s.mu.Unlock()
			s.drop(n, created)
			return nil
		}
		token = uint64(own.CreateRevision)
	}
	then := []clientv3.Op{clientv3.OpDelete(n.key)}
	s.mu.Lock()
	if uint64(n.created) == token {
		s.unwatchKey(n) // what it would tell is this
	}
	if _, asked := s.asked[election]; asked {
		then = append(then, clientv3.OpDelete(s.store.layout.asked(s.member, s.id, election))) // what nobody has read yet goes with the lease
	}
	s.mu.Unlock()
	_, err := s.store.txn(ctx, "release "+strconv.Quote(election), []clientv3.Cmp{term(n.key, token)}, then, nil)
	if err != nil {
		return err
	}
	s.drop(n, int64(token))
	return nil
}

// find returns the session's key, after what may still add one has landed.
func (s *session) find(ctx context.Context, n *standing) (*mvccpb.KeyValue, error) {
	s.mu.Lock()
	landed := n.landed
	if n.flying == 0 {
		landed = nil
	}
	s.mu.Unlock()
	if landed != nil {
		select {
		case <-landed:
		case <-ctx.Done():
			return nil, fmt.Errorf("etcd: release %q: %w", n.election, ctx.Err())
		}
	}
	r, err := s.store.get(ctx, n.key)
	if err != nil {
		return nil, err
	}
	return only(r.Kvs), nil
}
