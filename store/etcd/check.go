package etcd

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/gotenure/tenure/driver"
)

// check reads what the session holds, and returns it if that is not what its calls have reported. The revision is that of the renewal before it.
func (s *session) check(ctx context.Context, revision int64) (map[string]uint64, error) {
	s.mu.Lock()
	news, roster := s.news, s.roster
	s.roster = false
	before := make(map[string]uint64, len(s.standings))
	for election, n := range s.standings {
		before[election] = n.generation
	}
	s.mu.Unlock()
	elections, asks, err := s.attached(ctx)
	if err != nil {
		return nil, err
	}
	if roster {
		if err := s.count(ctx); err != nil {
			return nil, err
		}
	}
	asked := map[string]uint64(nil)
	if asks {
		if asked, err = s.requests(ctx); err != nil {
			return nil, err
		}
	}
	holds, differs, err := s.compare(ctx, elections, before, revision)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked, s.differs, s.digested, s.checked = asked, differs, news, revision
	if !differs {
		return nil, nil
	}
	return holds, nil
}

// attached returns the elections in which the session has a key, and whether there are requests to resign. The leading server answers, after it has
// applied everything that was written before.
func (s *session) attached(ctx context.Context) (elections map[string]bool, asks bool, err error) {
	call, cancel, err := s.store.begin(ctx)
	if err != nil {
		return nil, false, err
	}
	defer cancel()
	r, err := s.store.client.TimeToLive(call, s.lease, clientv3.WithAttachedKeys())
	if err != nil {
		return nil, false, s.store.failed(ctx, "read what is attached to the lease", err)
	}
	if r.TTL < 0 {
		return nil, false, driver.ErrSessionLost
	}
	elections = make(map[string]bool)
	requests := s.store.layout.asked(s.member, s.id, "")
	for _, key := range r.Keys {
		if election, session, ok := s.store.layout.split(string(key)); ok && session == s.id {
			elections[election] = true
		} else if strings.HasPrefix(string(key), requests) {
			asks = true
		}
	}
	return elections, asks, nil
}

// count finds out whether another session has the member's name.
func (s *session) count(ctx context.Context) error {
	r, err := s.store.get(ctx, s.store.layout.namesakes(s.member), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.roster = true
		return err
	}
	s.namesake = s.other((*pb.RangeResponse)(r))
	return nil
}

// requests returns the tokens of the terms that somebody asked the session to resign.
func (s *session) requests(ctx context.Context) (map[string]uint64, error) {
	prefix := s.store.layout.asked(s.member, s.id, "")
	r, err := s.store.get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	asked := make(map[string]uint64)
	for _, kv := range r.Kvs {
		if token, err := strconv.ParseUint(string(kv.Value), 10, 64); err == nil {
			asked[strings.TrimPrefix(string(kv.Key), prefix)] = token
		}
	}
	return asked, nil
}

// compare compares the elections in which the session has a key with what its calls have reported. What a call is changing, or has changed since before,
// counts as reported. Places in queues that nobody knows of are given up.
func (s *session) compare(ctx context.Context, elections map[string]bool, before map[string]uint64, revision int64) (holds map[string]uint64, differs bool, err error) {
	holds = make(map[string]uint64)
	doubtful := make(map[string]int64) // with the create revision that is known
	s.mu.Lock()
	for election, n := range s.standings {
		busy := n.calls > 0 || n.flying > 0 || before[election] != n.generation
		attached := elections[election]
		delete(elections, election)
		switch {
		case n.held && n.endWatch == nil && !busy && attached:
			doubtful[election] = n.created // something has happened to it
		case n.held && (busy || attached):
			holds[election] = uint64(n.created)
		case n.held:
			differs = true
		case busy || !attached || n.wait != nil && n.wait.awaited && !n.wait.gone:
		default:
			doubtful[election] = n.created
		}
	}
	s.mu.Unlock()
	for election := range elections {
		if _, known := before[election]; !known {
			doubtful[election] = 0
		}
	}
	for election, created := range doubtful {
		token, reported, err := s.resolve(ctx, election, created, revision)
		if err != nil {
			return nil, false, err
		}
		if token != 0 {
			holds[election] = token
		}
		differs = differs || !reported
	}
	return holds, differs, nil
}

// resolve finds out whether the session holds an election in which it has a key, and whether its calls have reported that.
func (s *session) resolve(ctx context.Context, election string, created, revision int64) (token uint64, reported bool, err error) {
	key := s.store.layout.key(election, s.id)
	r, err := s.store.get(ctx, key)
	if err != nil {
		return 0, false, err
	}
	first, _, err := s.store.first(ctx, election)
	if err != nil && first == nil {
		return 0, false, err
	}
	s.mu.Lock()
	n := s.standings[election]
	busy := n != nil && (n.calls > 0 || n.flying > 0)
	held := n != nil && n.held && n.created == created
	if len(r.Kvs) == 0 || busy {
		s.mu.Unlock()
		return 0, !held || busy, nil
	}
	own := r.Kvs[0]
	switch {
	case first != nil && first.CreateRevision == own.CreateRevision && intact(own):
		reported = held && own.CreateRevision == created
		if reported {
			s.watchKey(n, r.Header.Revision)
		}
		s.mu.Unlock()
		return uint64(own.CreateRevision), reported, nil
	case n != nil && n.created == own.CreateRevision && !n.held:
		s.mu.Unlock()
		return 0, true, nil // a place in the queue that a call has taken
	case held:
		s.mu.Unlock()
		return 0, false, nil
	}
	s.mu.Unlock()
	_, err = s.store.txn(ctx, fmt.Sprintf("give up a place in %q", election), []clientv3.Cmp{term(key, uint64(own.CreateRevision))}, []clientv3.Op{clientv3.OpDelete(key)}, nil)
	return 0, true, err
}
