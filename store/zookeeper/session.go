package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/gotenure/tenure/driver"
)

// A session is a member's ZooKeeper session with what it holds and waits for.
type session struct {
	store  *Store
	link   *link
	member string
	ttl    time.Duration
	id     string
	owner  int64  // the ID as nodes have it
	node   string // says that the session is this library's, and has requests to resign

	changed chan struct{} // buffer of one
	done    chan struct{} // closed when the session is lost
	losing  sync.Once
	closed  chan struct{} // closed by Close, whether or not it could end the session
	closing sync.Once

	mu       sync.Mutex
	lease    lease
	seats    map[string]*seat
	reported map[string]uint64 // what its calls have reported to hold, for Grant.Holds
	asks     map[string]uint64 // requests to resign, by election
	askNews  bool              // requests have to be read again
	namesake string
	nameNews bool // namesakes have to be read again
}

var _ driver.Session = (*session)(nil)

// A lease is what a session knows of how long it lasts.
type lease struct {
	timeout time.Duration // of the ZooKeeper session
	renewed time.Time     // when the last renewal was answered; zero while the session is being opened
	direct  time.Time     // before the leading server heard of the session by a connection that began
	touches []time.Time   // before later renewals, which its follower passes on within a tick
}

// grant counts a renewal that was sent, and committed by a majority. Another server than the leader may have taken it: the leader then knows of it a
// little later, and the follower may be cut off before. But a commit proves that until then the follower was not, so all that was sent a tick earlier has
// arrived. The grant counts from the latest of those.
func (e *lease) grant(sent time.Time, ttl, tick time.Duration) time.Duration {
	known := e.direct
	for len(e.touches) > 0 && !e.touches[0].After(sent.Add(-tick)) {
		if e.touches[0].After(known) {
			known = e.touches[0]
		}
		e.touches = e.touches[1:]
	}
	if known.After(e.direct) {
		e.direct = known // as good from now on
	}
	e.touches = append(e.touches, sent)
	return max(min(ttl, e.timeout-sent.Sub(known)), time.Millisecond)
}

// Open starts a ZooKeeper session for the member.
func (s *Store) Open(ctx context.Context, member string, ttl time.Duration) (driver.Session, error) {
	if err := driver.CheckName("member", member); err != nil {
		return nil, err
	}
	if info := s.Info(); ttl < info.MinTTL || ttl > info.MaxTTL {
		return nil, fmt.Errorf("zookeeper: %w: TTL %v: choose one from %v to %v, or change minSessionTimeout and maxSessionTimeout at the servers, which are %v and %v: they need to allow one and a half TTLs",
			driver.ErrInvalid, ttl, info.MinTTL, info.MaxTTL, s.minTimeout, s.maxTimeout)
	}
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	m := &session{
		store: s, member: member, ttl: ttl,
		changed: make(chan struct{}, 1), done: make(chan struct{}), closed: make(chan struct{}),
		seats: make(map[string]*seat), reported: make(map[string]uint64), asks: make(map[string]uint64), askNews: true, nameNews: true,
	}
	m.link = &link{quiet: true, hush: min(ttl/6, 2*time.Second), permit: m.permit, greeted: m.greeted, expired: m.lose}
	began := time.Now()
	if err := s.start(ctx, m.link, timeoutOf(ttl)); err != nil {
		return nil, err
	}
	m.link.mu.Lock()
	m.owner = m.link.session.session
	m.link.mu.Unlock()
	m.id = sessionID(m.owner)
	m.node = s.layout.session(member, m.id)
	err := m.register(ctx)
	if err == nil && time.Since(began) > ttl {
		err = fmt.Errorf("zookeeper: opening a session took %v, longer than its TTL of %v", time.Since(began), ttl)
	}
	if err != nil {
		s.drop(m.link)
		return nil, err
	}
	m.link.hook(m.node, func(zk.EventType) { m.news(&m.askNews); signal(m.changed) })
	m.link.hook(s.layout.members(member), func(zk.EventType) { m.news(&m.nameNews) })
	m.mu.Lock()
	m.lease.renewed = time.Now()
	m.mu.Unlock()
	return m, nil
}

func (m *session) news(flag *bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	*flag = true
}

// register makes the session's own node.
func (m *session) register(ctx context.Context) error {
	for {
		_, err := call(ctx, m.link, func(c *zk.Conn) (string, error) { return c.Create(m.node, nil, zk.FlagEphemeral, m.store.acl) })
		if errors.Is(err, zk.ErrNoNode) {
			if err := m.store.parents(ctx, m.link, m.node); err != nil {
				return err
			}
			continue
		}
		if errors.Is(err, zk.ErrNodeExists) {
			return nil // by a call whose answer was lost
		}
		return m.failed("make "+m.node, err)
	}
}

// permit says whether the session may connect again. When the TTL has passed it may not: connecting would renew it.
func (m *session) permit() bool {
	if m.lapsed() {
		m.lose()
		return false
	}
	return true
}

// lapsed reports whether the session is over, as far as this process knows.
func (m *session) lapsed() bool {
	select {
	case <-m.done:
		return true
	default:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.lease.renewed.IsZero() && time.Since(m.lease.renewed) > m.ttl
}

// greeted hears of a new connection: the leading server knows of the session at that time.
func (m *session) greeted(h handshake, began time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lease.timeout, m.lease.direct, m.lease.touches = h.timeout, began, nil
}

// lose ends the session for ever. A server that still has it is told so.
func (m *session) lose() {
	m.losing.Do(func() {
		close(m.done)
		signal(m.changed)
		m.store.drop(m.link)
	})
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// live returns why no call can be made.
func (m *session) live(ctx context.Context) error {
	if err := m.store.ready(ctx); err != nil {
		return err
	}
	select {
	case <-m.closed:
		return errSessionClosed
	default:
	}
	if m.lapsed() {
		m.lose()
		return driver.ErrSessionLost
	}
	return nil
}

// failed translates an error of a call.
func (m *session) failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	if m.store.ctx.Err() != nil {
		return errClosed
	}
	if errors.Is(err, zk.ErrSessionExpired) {
		m.lose()
	}
	select {
	case <-m.done:
		return driver.ErrSessionLost
	default:
	}
	select {
	case <-m.closed:
		return errSessionClosed
	default:
		return failure(doing, err)
	}
}

func (m *session) ID() string { return m.id }

func (m *session) Changed() <-chan struct{} { return m.changed }

// KeepAlive is one transaction: it has a majority of the servers agree that the session's node exists. Only what watches have told of is read.
func (m *session) KeepAlive(ctx context.Context) (driver.Grant, error) {
	if err := m.live(ctx); err != nil {
		return driver.Grant{}, err
	}
	sent := time.Now()
	err := m.link.commit(ctx, m.node)
	if errors.Is(err, zk.ErrNoNode) { // somebody has deleted it, while the session lives
		err = m.register(ctx)
	}
	if broken(err) {
		_, _ = m.link.connected(ctx) // the next connection tells whether the session is over
	}
	if err != nil {
		return driver.Grant{}, m.failed("renew", err)
	}
	m.mu.Lock()
	m.lease.renewed = time.Now()
	grant := driver.Grant{TTL: m.lease.grant(sent, m.ttl, m.store.minTimeout/2)}
	asked, named := m.askNews, m.nameNews
	m.askNews, m.nameNews = false, false
	m.mu.Unlock()
	if asked {
		if err := m.readAsks(ctx); err != nil {
			m.news(&m.askNews)
			return driver.Grant{}, err
		}
	}
	if named {
		if err := m.readNamesake(ctx); err != nil {
			m.news(&m.nameNews)
			return driver.Grant{}, err
		}
	}
	if err := m.reviewAll(ctx); err != nil {
		return driver.Grant{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	holds := make(map[string]uint64)
	for name, t := range m.seats {
		token := t.token
		if len(t.lock) > 0 {
			token = m.reported[name] // a call is finding it out
		}
		if token != 0 {
			holds[name] = token
		}
	}
	if !maps.Equal(holds, m.reported) {
		grant.Holds = holds
	}
	for name, token := range m.asks {
		if holds[name] == token {
			if grant.Asked == nil {
				grant.Asked = make(map[string]uint64)
			}
			grant.Asked[name] = token
		}
	}
	grant.Namesake = m.namesake
	return grant, nil
}

// reviewAll looks after the seats to which something has happened.
func (m *session) reviewAll(ctx context.Context) error {
	m.mu.Lock()
	var moved []*seat
	for _, t := range m.seats {
		if t.moved || t.sent {
			moved = append(moved, t)
		}
	}
	m.mu.Unlock()
	for _, t := range moved {
		if !t.tryLock() {
			continue // the call that is under way looks, or leaves it to the next renewal
		}
		err := m.review(ctx, t)
		t.unlock()
		if err != nil && !errors.Is(err, driver.ErrCorrupt) {
			return err
		}
	}
	return nil
}

func (m *session) readNamesake(ctx context.Context) error {
	dir := m.store.layout.members(m.member)
	n, err := m.link.children(ctx, dir, true)
	if err != nil {
		return m.failed("read "+dir, err)
	}
	slices.Sort(n.children)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.namesake = ""
	for _, other := range n.children {
		if other != m.id {
			m.namesake = other
			break
		}
	}
	return nil
}

// Close ends the ZooKeeper session, and with it all its nodes.
func (m *session) Close(ctx context.Context) error {
	m.closing.Do(func() { close(m.closed) })
	if err := m.store.ready(ctx); err != nil {
		m.store.drop(m.link)
		return err
	}
	select {
	case <-m.done:
		return nil
	default:
	}
	finished := make(chan bool, 1)
	go func() {
		// The connection may have been replaced at this moment. Another one can end the session too.
		finished <- m.link.close() || m.store.finishAnywhere(m.link)
	}()
	m.store.forget(m.link)
	select {
	case ok := <-finished:
		select {
		case <-m.done: // it was lost meanwhile
			ok = true
		default:
		}
		if !ok {
			go m.store.bury(m.link)
			return errors.New("zookeeper: close: no server has confirmed it: the session lapses by itself")
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("zookeeper: close: %w", ctx.Err())
	}
}
