package consul

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/gotenure/tenure/driver"
)

var errSessionClosed = errors.New("consul: session is closed")

// A session is a member's Consul session.
type session struct {
	store           *Store
	id, member, key string // key is the session's own
	ttl             time.Duration

	ctx     context.Context // ends with the session here
	cancel  context.CancelFunc
	changed chan struct{} // buffer of one
	buried  chan struct{} // closed when a session that is lost was destroyed in Consul, or could not be

	mu           sync.Mutex
	lost, closed bool
	deadline     time.Time
	timer        *time.Timer // that loses it at the deadline
	standings    map[string]*standing
	heirs        map[string]*api.KVPair // of the elections that it leads, by their keys
}

var _ driver.Session = (*session)(nil)

// Open starts a session of the member: in Consul the session and a key that it locks.
func (s *Store) Open(ctx context.Context, member string, ttl time.Duration) (driver.Session, error) {
	sent := time.Now()
	if err := driver.CheckName("member", member); err != nil {
		return nil, err
	}
	if ttl < s.opts.MinTTL || ttl > maxTTL {
		return nil, fmt.Errorf("consul: %w: TTL %v: choose one from %v to %v; for less, lower session_ttl_min of the Consul servers and say so with the parameter min-ttl of the store URL",
			driver.ErrInvalid, ttl, s.opts.MinTTL, maxTTL)
	}
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	id, err := s.create(ctx, member, ttl)
	if err != nil {
		return nil, err
	}
	n := &session{store: s, id: id, member: member, key: s.layout.member(member, id), ttl: ttl, changed: make(chan struct{}, 1), buried: make(chan struct{}), standings: make(map[string]*standing)}
	if err := n.enterMember(ctx); err != nil {
		_ = n.destroy(ctx) // else it lapses
		return nil, err
	}
	s.names.put(id, member)
	n.ctx, n.cancel = context.WithCancel(s.ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.deadline = sent.Add(ttl)
	n.timer = time.AfterFunc(time.Until(n.deadline), n.expire)
	s.run(n.watch)
	return n, nil
}

// create makes the session in Consul. The client's own call cannot say that the lock-delay is none.
func (s *Store) create(ctx context.Context, member string, ttl time.Duration) (string, error) {
	call, cancel := s.bound(ctx)
	defer cancel()
	body := map[string]any{
		"Name": member, "TTL": ttl.String(), "LockDelay": s.opts.LockDelay.String(), "NodeChecks": []string{},
		"Behavior": api.SessionBehaviorDelete, // so that nothing is left of a session that lapses
	}
	var answer struct{ ID string }
	_, err := s.client.Raw().Write("/v1/session/create", body, &answer, (&api.WriteOptions{}).WithContext(call))
	if err != nil && strings.Contains(err.Error(), "Invalid Session TTL") {
		return "", fmt.Errorf("consul: %w: TTL %v: the servers' session_ttl_min is greater than it: raise the TTL, or lower session_ttl_min: %w", driver.ErrInvalid, ttl, err)
	}
	return answer.ID, s.failed(ctx, toUseSessions, "create a session", err)
}

// enterMember makes the session's own key.
func (s *session) enterMember(ctx context.Context) error {
	_, err := s.store.write(ctx, fmt.Sprintf("lock key %q", s.key), change(0, s.lockOp(s.key, nil)))
	return err
}

func (s *session) lockOp(key string, value []byte) *api.KVTxnOp { return lockFor(s.id, key, value) }

// lockFor locks a key for a session, which may be another's.
func lockFor(session, key string, value []byte) *api.KVTxnOp {
	return &api.KVTxnOp{Verb: api.KVLock, Key: key, Value: value, Flags: flags, Session: session}
}

func (s *session) unlockOp(key string) *api.KVTxnOp {
	return &api.KVTxnOp{Verb: api.KVUnlock, Key: key, Flags: flags, Session: s.id}
}

func (s *session) ID() string { return s.id }

func (s *session) Changed() <-chan struct{} { return s.changed }

// alive returns an error when the session cannot do anything any more.
func (s *session) alive(ctx context.Context) error {
	if err := s.store.ready(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errSessionClosed
	case s.lost:
		return driver.ErrSessionLost
	case !time.Now().Before(s.deadline):
		s.lose()
		return driver.ErrSessionLost
	}
	return nil
}

// expire is what the timer calls.
func (s *session) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !time.Now().Before(s.deadline) { // else it was renewed while the timer fired, and the timer is set again
		s.lose()
	}
}

// lose ends the session here, and in Consul, which would keep it for up to one more TTL: as somebody's heir it would be given what it cannot take. The mutex is held.
func (s *session) lose() {
	if s.lost {
		return
	}
	s.lost = true
	s.timer.Stop()
	s.cancel()
	signal(s.changed)
	if !s.store.run(func() {
		defer close(s.buried)
		ctx, cancel := context.WithTimeout(s.store.ctx, s.ttl)
		defer cancel()
		_ = s.destroy(ctx) // else Consul ends it in time
	}) {
		close(s.buried)
	}
}

// failed returns what an error of a call means for the session.
func (s *session) failed(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil || errors.Is(err, driver.ErrHeld):
		return err
	case errors.Is(err, driver.ErrSessionLost):
		s.lose()
		return driver.ErrSessionLost
	case s.store.ctx.Err() != nil:
		return errClosed
	case s.closed:
		return errSessionClosed
	case s.lost:
		return driver.ErrSessionLost
	}
	return err
}

// KeepAlive renews the session in Consul and then reads what it holds of the elections that it has to do with.
func (s *session) KeepAlive(ctx context.Context) (driver.Grant, error) {
	if err := s.alive(ctx); err != nil {
		if errors.Is(err, driver.ErrSessionLost) {
			select {
			case <-s.buried:
			case <-ctx.Done():
			}
		}
		return driver.Grant{}, err
	}
	grant, err := s.keepAlive(ctx)
	return grant, s.failed(err)
}

func (s *session) keepAlive(ctx context.Context) (driver.Grant, error) {
	sent := time.Now()
	call, cancel := s.store.bound(ctx)
	defer cancel()
	info, _, err := s.store.client.Session().Renew(s.id, (&api.WriteOptions{}).WithContext(call))
	if err = s.store.failed(ctx, toUseSessions, "renew the session", err); err != nil {
		return driver.Grant{}, err
	}
	if info == nil {
		return driver.Grant{}, driver.ErrSessionLost
	}
	s.mu.Lock()
	if !s.lost && !s.closed {
		s.deadline = sent.Add(s.ttl)
		s.timer.Reset(time.Until(s.deadline))
	}
	before := make(map[string]uint64, len(s.standings))
	for name, n := range s.standings {
		before[name] = n.generation
	}
	s.mu.Unlock()
	entries, sessions, err := s.state(ctx, before)
	if err != nil {
		return driver.Grant{}, err
	}
	grant := s.compare(before, entries)
	own := false
	for _, entry := range sessions {
		switch id := strings.TrimPrefix(entry.Key, s.store.layout.members(s.member)); {
		case entry.Session != id:
		case id == s.id:
			own = true
			grant.Asked = s.requests(entry.Value)
		case grant.Namesake == "" || id < grant.Namesake:
			grant.Namesake = id
		}
	}
	s.withdrawStrays(ctx)
	if !own {
		// An administrator has deleted it. What is at stake are only requests to resign: the next renewal tries again.
		_ = s.enterMember(ctx)
	}
	return grant, nil
}

// maxOps is how many operations a transaction of Consul's may have.
const maxOps = 64

// state reads the entries of elections, by name, and of all sessions of the member.
func (s *session) state(ctx context.Context, elections map[string]uint64) (entries map[string]*api.KVPair, sessions api.KVPairs, err error) {
	members := s.store.layout.members(s.member)
	ops := api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVGetTree, Key: members}}}
	byKey := make(map[string]string, len(elections))
	entries = make(map[string]*api.KVPair, len(elections))
	flush := func() error {
		call, cancel := s.store.bound(ctx)
		defer cancel()
		ok, r, _, err := s.store.client.Txn().Txn(ops, (&api.QueryOptions{RequireConsistent: true}).WithContext(call))
		if err = s.store.failed(ctx, toReadKeys, "read what the session holds", err); err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("consul: read what the session holds: %v", r.Errors)
		}
		for _, result := range r.Results {
			if kv := result.KV; kv == nil || kv.CreateIndex == 0 {
				continue // there is no such key
			} else if name, ok := byKey[kv.Key]; ok {
				entries[name] = kv
			} else {
				sessions = append(sessions, kv)
			}
		}
		ops = nil
		return nil
	}
	for name := range elections {
		key := s.store.layout.key(name)
		byKey[key] = name
		if ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: key}}); len(ops) == maxOps {
			if err := flush(); err != nil {
				return nil, nil, err
			}
		}
	}
	if len(ops) > 0 {
		err = flush()
	}
	return entries, sessions, err
}

// compare makes a grant of what was read. Elections that calls have had to do with meanwhile are taken as those calls have left them.
func (s *session) compare(before map[string]uint64, entries map[string]*api.KVPair) driver.Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	reported, holds := make(map[string]uint64), make(map[string]uint64)
	for name, n := range s.standings {
		if n.reported != 0 {
			reported[name] = n.reported
		}
		generation, read := before[name]
		if !read || generation != n.generation || n.calls > 0 {
			if n.reported != 0 {
				holds[name] = n.reported
			}
			continue
		}
		if entry := entries[name]; entry != nil && entry.Session == s.id {
			holds[name] = tokenOf(entry)
			if holds[name] == n.reported {
				n.index = entry.ModifyIndex
			}
		}
		s.tidy(n)
	}
	grant := driver.Grant{TTL: s.ttl}
	if !maps.Equal(reported, holds) {
		grant.Holds = holds
	}
	return grant
}

// watch signals when the session's own key changes: because the session has ended, or because somebody asks it to resign. It also keeps in mind who the heirs are.
func (s *session) watch() {
	var next, last uint64
	for first, failures := true, 0; s.ctx.Err() == nil; {
		entries, after, err := s.store.waitTree(s.ctx, s.key, next, waitTime)
		if err != nil {
			failures++
			pause(s.ctx, min(100*time.Millisecond<<min(failures, 6), 5*time.Second))
			continue
		}
		failures = 0
		var own *api.KVPair
		heirs := make(map[string]*api.KVPair)
		for _, entry := range entries {
			if entry.Key == s.key {
				own = entry
			} else if entry.Session != "" {
				heirs[entry.Key] = entry
			}
		}
		s.mu.Lock()
		s.heirs = heirs
		s.mu.Unlock()
		if now := index(own); !first && now != last || vacant(own) && after != next {
			signal(s.changed)
		}
		first, last, next = false, index(own), after
	}
}

// pause waits for half of a time to all of it, by chance, unless the context ends.
func pause(ctx context.Context, most time.Duration) {
	timer := time.NewTimer(most/2 + rand.N(most/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Close ends the session in Consul, and with it all it holds. Where there is a lock-delay, what it holds is released before, for that has none.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.timer.Stop()
	held := make(map[string]uint64)
	for name, n := range s.standings {
		if n.reported != 0 {
			held[name] = n.reported
		}
	}
	s.mu.Unlock()
	s.cancel()
	if err := s.store.ready(ctx); err != nil {
		return err
	}
	if s.store.opts.LockDelay > 0 {
		for name, token := range held {
			if err := s.Release(ctx, name, token); err != nil {
				return err
			}
		}
	}
	return s.destroy(ctx)
}

func (s *session) destroy(ctx context.Context) error {
	call, cancel := s.store.bound(ctx)
	defer cancel()
	_, err := s.store.client.Session().Destroy(s.id, (&api.WriteOptions{}).WithContext(call))
	return s.store.failed(ctx, toUseSessions, "destroy the session", err)
}
