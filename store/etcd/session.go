package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/gotenure/tenure/driver"
)

// A session is a lease. What it stands for lies in standings.
type session struct {
	store   *Store
	lease   clientv3.LeaseID
	id      string
	member  string
	changed chan struct{} // buffer of one

	ctx    context.Context // ends with Close, with the store, and when the session is known to be lost
	cancel context.CancelFunc

	// The stream for renewals, of KeepAlive alone. It has one request under way at most, so that an answer is never taken for another's.
	renewals     pb.Lease_LeaseKeepAliveClient // nil: none is open
	endRenewals  context.CancelFunc
	renewalsOpen context.Context

	mu        sync.Mutex
	lost      bool
	closed    bool
	standings map[string]*standing
	stirred   chan struct{} // closed and replaced when all who wait should look again

	// What KeepAlive needs to know whether it has to read what the session holds.
	news     uint64 // counts what was heard that may matter
	digested uint64 // the count of news when they were last read
	checked  int64  // the revision after which what is held was last read
	differs  bool   // it differed from what calls have reported
	roster   bool   // sessions of the member's name have come or gone
	namesake string
	asked    map[string]uint64
}

var _ driver.Session = (*session)(nil)

// Open starts a session. The TTL is in whole seconds, as etcd's are.
func (s *Store) Open(ctx context.Context, member string, ttl time.Duration) (driver.Session, error) {
	if err := driver.CheckName("member", member); err != nil {
		return nil, err
	}
	if ttl < minTTL || ttl > maxTTL {
		return nil, fmt.Errorf("etcd: %w: TTL %v: choose one from %v to %v", driver.ErrInvalid, ttl, minTTL, maxTTL)
	}
	if ttl%time.Second != 0 {
		return nil, fmt.Errorf("etcd: %w: TTL %v: etcd counts in seconds: choose %v or %v", driver.ErrInvalid, ttl, ttl.Truncate(time.Second), ttl.Truncate(time.Second)+time.Second)
	}
	call, cancel, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	grant, err := s.client.Grant(call, int64(ttl/time.Second))
	if err != nil {
		return nil, s.failed(ctx, "grant a lease", err)
	}
	n := &session{
		store: s, lease: grant.ID, id: sessionID(grant.ID), member: member,
		changed: make(chan struct{}, 1), standings: make(map[string]*standing), stirred: make(chan struct{}),
	}
	revision, err := n.introduce(ctx, time.Duration(grant.TTL)*time.Second, ttl)
	if err != nil {
		go func() { // the caller need not wait for it, and the lease lapses in any case
			ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
			defer cancel()
			_, _ = s.client.Revoke(ctx, grant.ID)
		}()
		return nil, err
	}
	n.ctx, n.cancel = context.WithCancel(s.ctx)
	go n.attend(revision)
	return n, nil
}

// introduce checks what was granted and writes whose session it is. It returns the revision at which it did.
func (s *session) introduce(ctx context.Context, granted, ttl time.Duration) (int64, error) {
	if granted > ttl {
		return 0, fmt.Errorf("etcd: %w: TTL %v: the server grants no less than %v, which comes from its --election-timeout: choose that or more", driver.ErrInvalid, ttl, granted)
	}
	group := s.store.layout.namesakes(s.member)
	r, err := s.store.txn(ctx, "write the session's member", nil, []clientv3.Op{
		clientv3.OpPut(s.store.layout.member(s.id), s.member, clientv3.WithLease(s.lease)),
		clientv3.OpPut(group+s.id, "", clientv3.WithLease(s.lease)),
		clientv3.OpGet(group, clientv3.WithPrefix(), clientv3.WithKeysOnly()),
	}, nil)
	if err != nil {
		return 0, err
	}
	s.checked = r.Header.Revision
	s.namesake = s.other(r.Responses[2].GetResponseRange())
	return r.Header.Revision, nil
}

// other returns the ID of another session of the member's name, of those whose keys were read.
func (s *session) other(r *pb.RangeResponse) string {
	group := s.store.layout.namesakes(s.member)
	for _, kv := range r.Kvs {
		if id := strings.TrimPrefix(string(kv.Key), group); id != s.id && leaseOf(id) != clientv3.NoLease {
			return id
		}
	}
	return ""
}

func (s *session) ID() string { return s.id }

func (s *session) Changed() <-chan struct{} { return s.changed }

// ready returns why no call can be made.
func (s *session) ready(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.lost:
		return driver.ErrSessionLost
	case s.store.ctx.Err() != nil:
		return errClosed
	case s.closed:
		return errSessionClosed
	case ctx.Err() != nil:
		return fmt.Errorf("etcd: %w", ctx.Err())
	}
	return nil
}

// failed translates an error of a call, and remembers when it says that the session is lost.
func (s *session) failed(err error) error {
	if lost(err) {
		s.lose()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		return nil
	case s.lost:
		return driver.ErrSessionLost
	case s.closed:
		return errSessionClosed
	}
	return err
}

func (s *session) lose() {
	s.mu.Lock()
	s.lost = true
	s.mu.Unlock()
	s.cancel()
	s.signal()
}

// heard notes that something may have changed, and signals it.
func (s *session) heard() {
	s.mu.Lock()
	s.news++
	s.mu.Unlock()
	s.signal()
}

func (s *session) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// stir makes all who wait look again.
func (s *session) stir() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.stirred)
	s.stirred = make(chan struct{})
}

// KeepAlive renews the lease. That is all, as long as nothing was written to etcd since it last read what the session holds.
func (s *session) KeepAlive(ctx context.Context) (driver.Grant, error) {
	if err := s.ready(ctx); err != nil {
		return driver.Grant{}, err
	}
	r, err := s.renew(ctx)
	if err != nil {
		return driver.Grant{}, s.failed(s.store.failed(ctx, "renew the lease", err))
	}
	if r.TTL <= 0 {
		s.lose()
		return driver.Grant{}, driver.ErrSessionLost
	}
	grant := driver.Grant{TTL: time.Duration(r.TTL) * time.Second}
	s.mu.Lock()
	// What was deleted before this call began was deleted at a revision up to the answer's.
	current := s.news == s.digested && !s.differs && r.Header.Revision == s.checked
	back := r.Header.Revision < s.checked
	s.mu.Unlock()
	if back {
		// The servers were given older data, or this one lags behind the one before. Watches wait for revisions that may come again with other changes.
		s.stir()
	}
	if !current {
		if grant.Holds, err = s.check(ctx, r.Header.Revision); err != nil {
			return driver.Grant{}, s.failed(err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	grant.Namesake = s.namesake
	for election, token := range s.asked {
		if n := s.standings[election]; n != nil && n.held && uint64(n.created) == token {
			if grant.Asked == nil {
				grant.Asked = make(map[string]uint64)
			}
			grant.Asked[election] = token
		}
	}
	return grant, nil
}

// renew sends one message and awaits the answer. When the context ends before, the stream ends too: another is opened, which several servers may lead
// to another server.
func (s *session) renew(ctx context.Context) (*pb.LeaseKeepAliveResponse, error) {
	for {
		opened := s.renewals == nil
		if opened {
			streaming, cancel := context.WithCancel(s.ctx)
			s.renewalsOpen, s.endRenewals = clientv3.WithRequireLeader(streaming), cancel
		}
		stop := context.AfterFunc(ctx, s.endRenewals)
		r, sent, err := s.exchange()
		if !stop() || err != nil {
			s.endRenewals()
			s.renewals = nil
		}
		if err == nil || sent || opened || ctx.Err() != nil {
			return r, err
		}
		// The stream of the last renewal had ended since, and nothing was sent on it.
	}
}

func (s *session) exchange() (r *pb.LeaseKeepAliveResponse, sent bool, err error) {
	if s.renewals == nil {
		if s.renewals, err = pb.NewLeaseClient(s.store.client.ActiveConnection()).LeaseKeepAlive(s.renewalsOpen); err != nil {
			return nil, false, err
		}
	}
	err = s.renewals.Send(&pb.LeaseKeepAliveRequest{ID: int64(s.lease)})
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, true, err
	}
	sent = err == nil
	r, err = s.renewals.Recv() // after a Send that failed it says why
	if err == nil && r.ID != int64(s.lease) {
		err = fmt.Errorf("answer is for lease %x instead of %x", r.ID, s.lease)
	}
	return r, sent, err
}

// Close revokes the lease, and with it all that is attached to it.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	over := s.lost
	s.mu.Unlock()
	s.cancel()
	if over && s.store.ctx.Err() == nil {
		return nil
	}
	call, cancel, err := s.store.begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	if _, err = s.store.client.Revoke(call, s.lease); lost(err) {
		return nil
	}
	return s.store.failed(ctx, "revoke the lease", err)
}

// attend listens for the end of the session, for its namesakes, and for requests to resign, until the session ends.
func (s *session) attend(revision int64) {
	ctx := clientv3.WithRequireLeader(s.ctx)
	group := s.store.layout.namesakes(s.member)
	for ctx.Err() == nil {
		for r := range s.store.client.Watch(ctx, group, clientv3.WithPrefix(), clientv3.WithRev(revision)) {
			if r.Err() != nil {
				break
			}
			for _, e := range r.Events {
				s.attendTo(strings.TrimPrefix(string(e.Kv.Key), group), e.Type == clientv3.EventTypeDelete)
			}
		}
		// What was missed shows when everything is read, from which on it is watched again.
		s.mu.Lock()
		s.roster = true
		s.news++
		s.mu.Unlock()
		revision = 0
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// attendTo digests the change of a key below the member's name: a session's, or below that a request to resign.
func (s *session) attendTo(key string, deleted bool) {
	id, election, ask := strings.Cut(key, "/")
	switch {
	case id == s.id && ask && election != "":
		if !deleted {
			s.heard()
		}
	case id == s.id && deleted:
		s.heard() // most likely the lease is gone: whoever waits finds out
		s.stir()
	case id != s.id && !ask:
		s.mu.Lock()
		s.roster = true
		s.mu.Unlock()
		s.heard()
	}
}
