package zookeeper

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

// A seat is what a session has to do with one election. Its lock is held while its node is made, looked for or removed; the mutex of the session
// guards what is below.
type seat struct {
	election string
	dir      string
	lock     chan struct{} // buffer of one

	mark  string // the unique part of the node's name
	sent  bool   // a node was asked for, and whether it was made is not known
	path  string // of the node; empty: there is none, or it is not known
	data  []byte // of the node
	later bool   // it has published another value since, or may have
	token uint64 // of the term; 0: it does not lead, as far as is known
	moved bool   // something has happened that KeepAlive has to look after

	ahead, beyond ear    // the nodes before the own one of which the seat hears: the one ahead, and the one ahead of that
	unhookOwn     func() // the seat hears of its own node; nil: it does not

	// known says that the own node was read, is watched, and has not changed; heir that moreover the node ahead leads, and is watched. Events come in the order in
	// which things happen, as long as the connection stays, so when the next one tells that the node ahead of an heir was deleted the own one leads: inherits.
	known, heir, inherits bool
	connection            int64 // through which it is so
	own                   node

	early chan line // the line that is being read since the node ahead was deleted; buffer of one; nil: none is

	waits bool          // the last Acquire was refused, and nothing has happened since
	wake  chan struct{} // closed when that is over
}

// An ear hears of one node, or of none.
type ear struct {
	path   string // of the node
	unhook func()
}

func (t *seat) tryLock() bool {
	select {
	case t.lock <- struct{}{}:
		return true
	default:
		return false
	}
}

func (t *seat) unlock() { <-t.lock }

// seat returns the session's seat in an election, locked; nil when there is none and make is false.
func (m *session) seat(ctx context.Context, election string, make bool) (*seat, error) {
	for {
		m.mu.Lock()
		t := m.seats[election]
		if t == nil {
			if !make {
				m.mu.Unlock()
				return nil, nil
			}
			t = newSeat(election, m.store.layout.election(election))
			m.seats[election] = t
		}
		m.mu.Unlock()
		select {
		case t.lock <- struct{}{}:
		case <-ctx.Done():
			return nil, fmt.Errorf("zookeeper: %w", ctx.Err())
		}
		m.mu.Lock()
		current := m.seats[election] == t
		m.mu.Unlock()
		if current {
			return t, nil
		}
		t.unlock() // it was given up meanwhile
	}
}

func newSeat(election, dir string) *seat {
	return &seat{election: election, dir: dir, lock: make(chan struct{}, 1), mark: newMark(), wake: make(chan struct{})}
}

// newMark returns a random UUID, whose form Curator expects.
func newMark() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// happened is called when something has happened to the node ahead.
func (m *session) happened(t *seat, path string, event zk.EventType) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t.ahead.path != path {
		return
	}
	if t.path != "" {
		t.moved = true
	}
	if event == zk.EventNodeDeleted && t.waits && t.connection == m.link.connections.Load() {
		t.inherits = t.heir
		if t.known && !t.heir {
			t.early = make(chan line, 1)
			go m.lookEarly(t, t.early)
		}
	}
	t.rouse()
}

// lookEarly reads what the Acquire that follows wants to know, before its caller has woken. It leaves errors to that.
func (m *session) lookEarly(t *seat, early chan<- line) {
	defer close(early)
	ctx, cancel := context.WithTimeout(m.store.ctx, m.ttl)
	defer cancel()
	if q, err := m.line(ctx, t); err == nil {
		early <- q
	}
}

// happenedOwn is called when something has happened to the seat's own node.
func (m *session) happenedOwn(t *seat, path string, event zk.EventType) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t.path != path || t.unhookOwn == nil {
		return
	}
	t.moved, t.known, t.heir, t.inherits = true, false, false, false
	if t.token != 0 {
		signal(m.changed)
	}
	if event != zk.EventNodeDataChanged { // which takes no place away
		t.rouse()
	}
}

// rouse ends a wait. The mutex is held.
func (t *seat) rouse() {
	if t.waits {
		t.waits = false
		close(t.wake)
	}
}

// happenedBeyond is called when something has happened to the node before the one ahead.
func (m *session) happenedBeyond(t *seat, path string, event zk.EventType) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if event == zk.EventNodeDeleted && t.beyond.path == path && t.waits {
		go m.promote(t)
	}
}

// calm is how long what can wait does, after news of a handover.
const calm = 20 * time.Millisecond

// promote looks whether a seat that waits has become the heir, so that the next handover need not.
func (m *session) promote(t *seat) {
	select {
	case <-time.After(calm):
	case <-m.done:
		return
	case <-m.store.ctx.Done():
		return
	}
	if !t.tryLock() {
		return // whoever has the lock looks
	}
	defer t.unlock()
	m.mu.Lock()
	waits := t.waits && t.path != "" && m.seats[t.election] == t
	m.mu.Unlock()
	if !waits {
		return
	}
	ctx, cancel := context.WithTimeout(m.store.ctx, m.ttl)
	defer cancel()
	_, _, _ = m.look(ctx, t) // what fails is seen to by the next renewal
}

// hear makes the seat hear of a node ahead, and of no other; empty: of none.
func (m *session) hear(t *seat, path string) {
	m.listen(&t.ahead, path, func(event zk.EventType) { m.happened(t, path, event) })
}

// hearBeyond does so with the node before that.
func (m *session) hearBeyond(t *seat, path string) {
	m.listen(&t.beyond, path, func(event zk.EventType) { m.happenedBeyond(t, path, event) })
}

func (m *session) listen(e *ear, path string, f func(zk.EventType)) {
	m.mu.Lock()
	unhook, same := e.unhook, e.path == path
	if !same {
		e.path, e.unhook = path, nil
	}
	m.mu.Unlock()
	if same {
		return
	}
	if unhook != nil {
		unhook()
	}
	if path == "" {
		return
	}
	unhook = m.link.hook(path, f)
	m.mu.Lock()
	e.unhook = unhook
	m.mu.Unlock()
}

// hearOwn makes the seat hear of its own node, whose path is known.
func (m *session) hearOwn(t *seat) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if path := t.path; t.unhookOwn == nil {
		t.unhookOwn = m.link.hook(path, func(event zk.EventType) { m.happenedOwn(t, path, event) })
	}
}

// deafen ends what hearOwn began. The mutex is held.
func (t *seat) deafen() {
	if t.unhookOwn != nil {
		t.unhookOwn()
		t.unhookOwn = nil
	}
}

// leave gives a seat up that has no node.
func (m *session) leave(t *seat) {
	m.hear(t, "")
	m.hearBeyond(t, "")
	m.mu.Lock()
	defer m.mu.Unlock()
	t.deafen()
	t.rouse()
	if m.seats[t.election] == t {
		delete(m.seats, t.election)
	}
}

// gone forgets a seat's node, which is no longer there. The next one has another name.
func (m *session) gone(t *seat) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.deafen()
	t.mark, t.sent, t.path, t.data, t.later, t.token, t.moved = newMark(), false, "", nil, false, 0, false
	t.known, t.heir, t.inherits, t.early = false, false, false, nil
	t.rouse()
}

// A position is where a seat's node stands.
type position struct {
	own   node
	line  line
	ahead string // the path of the node before the own; empty: the own leads
}

// look finds the seat's node in the queue, and hears of what would change its position. ok is false when the node is not there.
func (m *session) look(ctx context.Context, t *seat) (at position, ok bool, err error) {
	for {
		m.mu.Lock()
		t.moved, t.heir, t.inherits = false, false, false
		connection := m.link.connections.Load()
		t.known = t.known && t.connection == connection
		m.mu.Unlock()
		q, err := m.next(ctx, t)
		if err != nil {
			return position{}, false, m.stale(t, err)
		}
		name := t.dir + "/" + candidatePrefix + t.mark + latch
		mine := func(c candidate) bool { return strings.HasPrefix(c.path, name) }
		i := slices.IndexFunc(q.candidates, mine)
		if i < 0 {
			m.gone(t)
			return position{}, false, nil
		}
		own := q.candidates[i].path
		m.mu.Lock()
		t.path, t.sent = own, false
		m.mu.Unlock()
		for _, c := range q.candidates[i+1:] {
			if mine(c) { // asked for twice, because the first answer was lost
				if err := m.remove(ctx, c.path); err != nil {
					return position{}, false, m.stale(t, err)
				}
			}
		}
		m.hearOwn(t)
		if i > 0 {
			ahead := q.candidates[i-1].path
			m.hear(t, ahead)
			there, err := m.link.exists(ctx, ahead, true)
			if err != nil {
				return position{}, false, m.stale(t, m.failed("watch "+ahead, err))
			}
			if !there {
				continue
			}
			at.ahead = ahead
		} else {
			m.hear(t, "")
		}
		there, err := m.lookBeyond(ctx, t, q.candidates[:i])
		if err != nil {
			return position{}, false, m.stale(t, err)
		}
		if !there {
			continue
		}
		there, err = m.readOwn(ctx, t, connection)
		if err != nil {
			return position{}, false, m.failed("read "+own, err)
		}
		if !there {
			continue
		}
		m.mu.Lock()
		at.own, at.line = t.own, q
		t.token = 0
		if i == 0 {
			t.token = uint64(at.own.stat.Czxid)
		}
		t.heir = i == 1 && t.known && !t.moved
		m.mu.Unlock()
		if at.own.stat.EphemeralOwner != m.owner {
			m.gone(t) // somebody else has made a node of this name
			return position{}, false, nil
		}
		return at, true, nil
	}
}

// lookBeyond hears of the node before the one ahead, if there are two. there is false when it has just gone.
func (m *session) lookBeyond(ctx context.Context, t *seat, before []candidate) (there bool, err error) {
	if len(before) < 2 {
		m.hearBeyond(t, "")
		return true, nil
	}
	beyond := before[len(before)-2].path
	m.hearBeyond(t, beyond)
	there, err = m.link.exists(ctx, beyond, true)
	return there, m.failed("watch "+beyond, err)
}

// readOwn reads the seat's own node and watches it, unless it is known. there is false when it has just gone.
func (m *session) readOwn(ctx context.Context, t *seat, connection int64) (there bool, err error) {
	m.mu.Lock()
	known, path := t.known, t.path
	t.known, t.connection = true, connection // until something happens to it, or the connection
	m.mu.Unlock()
	if known {
		return true, nil
	}
	n, err := m.link.get(ctx, path, true)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		t.known = false
		if errors.Is(err, zk.ErrNoNode) {
			return false, nil
		}
		t.moved = true
		return false, err
	}
	t.data, t.own = n.data, n
	return true, nil
}

// inherit makes the seat the leader's when nothing has to be read for that.
func (m *session) inherit(t *seat, data []byte) (h holder, ok bool, err error) {
	m.mu.Lock()
	ok = t.inherits && bytes.Equal(t.data, data)
	if !ok {
		m.mu.Unlock()
		return holder{}, false, nil
	}
	t.moved, t.heir, t.inherits = false, false, false
	t.token = uint64(t.own.stat.Czxid)
	path, own := t.path, t.own
	m.mu.Unlock()
	m.hear(t, "")
	h, err = holderOf(t.election, path, own)
	return h, true, err
}

// stale marks a seat whose look has failed.
func (m *session) stale(t *seat, err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.moved = true
	return err
}

// next returns the election's line, as an early look has found it, or else as it is now.
func (m *session) next(ctx context.Context, t *seat) (line, error) {
	m.mu.Lock()
	early := t.early
	t.early = nil
	m.mu.Unlock()
	if early != nil {
		select {
		case q, ok := <-early:
			if ok {
				return q, nil
			}
		case <-ctx.Done():
		}
	}
	return m.line(ctx, t)
}

// line reads the election's line.
func (m *session) line(ctx context.Context, t *seat) (line, error) {
	n, err := m.link.children(ctx, t.dir, false)
	if errors.Is(err, zk.ErrNoNode) {
		return line{}, nil
	}
	if err != nil {
		return line{}, m.failed("read "+t.dir, err)
	}
	return lineOf(t.dir, n), nil
}

// review finds out what has become of a seat. Whether a node was made whose answer was lost is certain only after a barrier.
func (m *session) review(ctx context.Context, t *seat) error {
	m.mu.Lock()
	sent, node := t.sent, t.path != ""
	m.mu.Unlock()
	if !sent && !node {
		return nil
	}
	if sent {
		if err := m.link.barrier(ctx); err != nil {
			return m.failed("look for a node", err)
		}
	}
	_, _, err := m.look(ctx, t)
	return err
}
