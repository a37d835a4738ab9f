package etcd

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/gotenure/tenure/driver"
)

// page is how many keys one request reads at most, where there may be many.
const page = 500

// byAge are the options of a read that yields the candidates of an election in the order of the queue.
func byAge(to clientv3.OpOption, order clientv3.SortOrder, limit int64) []clientv3.OpOption {
	return []clientv3.OpOption{to, clientv3.WithSort(clientv3.SortByCreateRevision, order), clientv3.WithLimit(limit)}
}

// pick returns the first candidate of what was read; complete is false when there was none, but there may be one in what was not read.
func (l layout) pick(election string, kvs []*mvccpb.KeyValue, more bool) (kv *mvccpb.KeyValue, complete bool) {
	for _, kv := range kvs {
		if l.candidate(election, string(kv.Key)) {
			return kv, true
		}
	}
	return nil, !more
}

// first returns the candidate at the head of the queue, nil when there is none, and the revision at which that was so.
func (s *Store) first(ctx context.Context, election string) (*mvccpb.KeyValue, int64, error) {
	return s.end(ctx, election, clientv3.SortAscend, 0)
}

// end returns the first or the last of the candidates whose create revisions are below the limit; 0: of all.
func (s *Store) end(ctx context.Context, election string, order clientv3.SortOrder, below int64) (*mvccpb.KeyValue, int64, error) {
	from, to := s.layout.candidates(election)
	opts := byAge(to, order, 1)
	if below > 0 {
		opts = append(opts, clientv3.WithMaxCreateRev(below-1))
	}
	for {
		r, err := s.get(ctx, from, opts...)
		if err != nil {
			return nil, 0, err
		}
		kv, complete := s.layout.pick(election, r.Kvs, r.More)
		if complete {
			if kv != nil && !intact(kv) {
				return kv, r.Header.Revision, corrupt(kv)
			}
			return kv, r.Header.Revision, nil
		}
		// Elections whose names begin with this one's name and a slash stood before it. Take them all.
		opts = byAge(to, order, 0)
		if below > 0 {
			opts = append(opts, clientv3.WithMaxCreateRev(below-1))
		}
	}
}

// Get reads an election's record.
func (s *Store) Get(ctx context.Context, election string) (driver.Record, error) {
	r, _, err := s.read(ctx, election)
	return r, err
}

// read returns the record and the revision at which it was read.
func (s *Store) read(ctx context.Context, election string) (driver.Record, int64, error) {
	if err := checkElection(election); err != nil {
		return driver.Record{}, 0, err
	}
	kv, revision, err := s.first(ctx, election)
	if err != nil {
		return driver.Record{}, revision, err
	}
	r, err := s.record(ctx, election, kv, revision)
	return r, revision, err
}

// record makes a record of the key at the head of the queue, which may be nil.
func (s *Store) record(ctx context.Context, election string, kv *mvccpb.KeyValue, revision int64) (driver.Record, error) {
	if kv == nil {
		return driver.Record{Election: election}, nil
	}
	if !intact(kv) {
		return driver.Record{}, corrupt(kv)
	}
	session := sessionID(clientv3.LeaseID(kv.Lease))
	member, ours, err := s.memberOf(ctx, session, revision)
	if err != nil {
		return driver.Record{}, err
	}
	r := driver.Record{Election: election, Leader: member, Session: session, Token: uint64(kv.CreateRevision), Value: kv.Value}
	if !ours {
		r.Leader = foreign(session, kv.Value)
	}
	return r, nil
}

// foreign names a candidate that is no member of this library: what it publishes usually is its name.
func foreign(session string, value []byte) string {
	if name := string(value); driver.CheckName("leader", name) == nil {
		return name
	}
	return "lease " + session
}

// List yields the records whose names start with prefix, as they all were at one moment.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		leaders, revision, err := s.leaders(ctx, prefix)
		if err != nil {
			yield(driver.Record{}, err)
			return
		}
		names := slices.SortedFunc(maps.Keys(leaders), strings.Compare)
		for chunk := range slices.Chunk(names, 50) {
			records, err := s.records(ctx, chunk, leaders, revision)
			if err != nil {
				yield(driver.Record{}, err)
				return
			}
			for _, name := range chunk {
				r, err := records[name], error(nil)
				if !r.Held() {
					err = corrupt(leaders[name])
				}
				if !yield(r, err) {
					return
				}
			}
		}
	}
}

// leaders returns the keys, without values, at the heads of the queues of all elections with a prefix.
func (s *Store) leaders(ctx context.Context, prefix string) (leaders map[string]*mvccpb.KeyValue, revision int64, err error) {
	leaders = make(map[string]*mvccpb.KeyValue)
	from := string(s.layout) + prefix
	end := clientv3.GetPrefixRangeEnd(from)
	if from == "" {
		from, end = "\x00", "\x00"
	}
	for {
		r, err := s.get(ctx, from, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(page), clientv3.WithRev(revision))
		if err != nil {
			return nil, 0, err
		}
		if revision == 0 {
			revision = r.Header.Revision
		}
		for _, kv := range r.Kvs {
			name, _, ok := s.layout.split(string(kv.Key))
			if !ok || !strings.HasPrefix(name, prefix) {
				continue
			}
			if old := leaders[name]; old == nil || kv.CreateRevision < old.CreateRevision {
				leaders[name] = kv
			}
		}
		if !r.More || len(r.Kvs) == 0 {
			return leaders, revision, nil
		}
		from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
	}
}

// records reads what the leaders publish and who they are, at one revision. Corrupt ones are left out.
func (s *Store) records(ctx context.Context, names []string, leaders map[string]*mvccpb.KeyValue, revision int64) (map[string]driver.Record, error) {
	var ops []clientv3.Op
	asked := make(map[string]bool)
	for _, name := range names {
		key := string(leaders[name].Key)
		ops = append(ops, clientv3.OpGet(key, clientv3.WithRev(revision)))
		_, session, _ := s.layout.split(key)
		if _, _, known := s.members.get(session); !known && !asked[session] {
			asked[session] = true
			ops = append(ops, clientv3.OpGet(s.layout.member(session), clientv3.WithRev(revision)))
		}
	}
	t, err := s.txn(ctx, "read elections", nil, ops, nil)
	if err != nil {
		return nil, err
	}
	found := make(map[string]*mvccpb.KeyValue)
	for _, r := range t.Responses {
		for _, kv := range r.GetResponseRange().Kvs {
			found[string(kv.Key)] = kv
		}
	}
	for session := range asked {
		kv := found[s.layout.member(session)]
		s.members.put(session, kv)
	}
	records := make(map[string]driver.Record)
	for _, name := range names {
		leaders[name] = found[string(leaders[name].Key)] // with its lease and its value
		if kv := leaders[name]; intact(kv) {
			if records[name], err = s.record(ctx, name, kv, revision); err != nil {
				return nil, err
			}
		}
	}
	return records, nil
}

// memberOf returns the member of a session; ours is false when it is none of this library's. It is read at the revision at which the session was seen,
// 0 for now: later it may have ended.
func (s *Store) memberOf(ctx context.Context, session string, revision int64) (member string, ours bool, err error) {
	member, ours, known := s.members.get(session)
	if known {
		return member, ours, nil
	}
	r, err := s.get(ctx, s.layout.member(session), clientv3.WithRev(revision))
	if err != nil {
		return "", false, err
	}
	var kv *mvccpb.KeyValue
	if len(r.Kvs) > 0 {
		kv = r.Kvs[0]
	}
	member, ours = s.members.put(session, kv)
	return member, ours, nil
}

// members remembers who has which session, which never changes. Its zero value is ready.
type members struct {
	mu  sync.Mutex
	all map[string]string // empty: not one of this library's
}

// maxMembers is how many are remembered: more than lead in one cluster, little enough memory.
const maxMembers = 10_000

func (m *members) get(session string) (member string, ours, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	member, known = m.all[session]
	return member, member != "", known
}

// put remembers the key that has a session's member; nil: there is none.
func (m *members) put(session string, kv *mvccpb.KeyValue) (member string, ours bool) {
	if kv != nil && driver.CheckName("member", string(kv.Value)) == nil {
		member = string(kv.Value)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil || len(m.all) >= maxMembers {
		m.all = make(map[string]string)
	}
	m.all[session] = member
	return member, member != ""
}
