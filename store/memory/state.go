package memory

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gotenure/tenure/driver"
)

// A state is what all handles of a place share. Its methods take the mutex, except the helpers at the end of the file, which expect
// their caller to hold it. It is never held across a wait.
type state struct {
	mu        sync.Mutex
	opened    uint64 // sessions ever opened, from which their IDs are made
	token     uint64 // the last token handed out, of any election
	sessions  map[string]*session
	members   map[string]map[*session]struct{} // the live sessions of each member
	elections map[string]*election
	watches   map[string]map[chan struct{}]struct{} // by election
}

// An election is kept as long as the place, as its last token is.
type election struct {
	name       string
	holder     *session // nil: vacant
	token      uint64   // of the current term or the last one; 0: never held, or the record was deleted
	value      []byte
	acquiredAt time.Time
	asked      bool               // the holder was asked to resign
	queue      []place            // first in line first
	waits      map[*session]*wait // who met a holder, and has neither acquired nor released since
}

// A place in the queue of an election.
type place struct {
	session *session
	value   []byte
}

// A wait stands between an Acquire that met a holder and the Await that follows it.
type wait struct {
	woken bool
	wake  chan struct{} // closed when woken
}

func (w *wait) notify() {
	if !w.woken {
		w.woken = true
		close(w.wake)
	}
}

// sameState reports whether a and b are one state in the sense of driver.Store.Watch.
func sameState(a, b driver.Record) bool {
	return a.Session == b.Session && a.Token == b.Token && bytes.Equal(a.Value, b.Value)
}

func (st *state) get(name string) driver.Record {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.record(name)
}

func (st *state) list(prefix string) []driver.Record {
	st.mu.Lock()
	defer st.mu.Unlock()
	var records []driver.Record
	for name := range st.elections {
		if strings.HasPrefix(name, prefix) {
			if record := st.record(name); record.Token != 0 {
				records = append(records, record)
			}
		}
	}
	slices.SortFunc(records, func(a, b driver.Record) int { return strings.Compare(a.Election, b.Election) })
	return records
}

// watch returns a channel with a buffer of one that receives after the election has changed.
func (st *state) watch(name string) chan struct{} {
	st.mu.Lock()
	defer st.mu.Unlock()
	changed := make(chan struct{}, 1)
	if st.watches[name] == nil {
		st.watches[name] = make(map[chan struct{}]struct{})
	}
	st.watches[name][changed] = struct{}{}
	return changed
}

func (st *state) unwatch(name string, changed chan struct{}) {
	st.mu.Lock()
	defer st.mu.Unlock()
	delete(st.watches[name], changed)
	if len(st.watches[name]) == 0 {
		delete(st.watches, name)
	}
}

func (st *state) ask(name string, token uint64) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	e := st.settled(name)
	if e == nil || e.holder == nil || e.token != token {
		return driver.ErrNotHeld
	}
	e.asked = true
	signal(e.holder.changed)
	return nil
}

func (st *state) deleteRecord(name string) (driver.Record, bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	e := st.settled(name)
	if e == nil || e.token == 0 {
		return driver.Record{}, false
	}
	record := st.record(name)
	if e.holder != nil {
		signal(e.holder.changed)
	}
	st.clear(e)
	e.token = 0
	for _, w := range e.waits {
		w.notify()
	}
	return record, true
}

func (st *state) overwriteRecord(name, sessionID string) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	s := st.sessions[sessionID]
	if s == nil || s.lapsed() {
		return false
	}
	e := st.election(name)
	if e.holder != nil {
		signal(e.holder.changed)
	}
	st.clear(e)
	st.give(e, s, nil)
	return true
}

func (st *state) dropSession(id string) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	s := st.sessions[id]
	if s == nil {
		return false
	}
	st.end(s)
	return true
}

// From here on the mutex is held by the caller.

// settled returns the election after it has let go of a holder whose time is over but whose timer has yet to fire; nil when there is none.
func (st *state) settled(name string) *election {
	e := st.elections[name]
	for e != nil && e.holder != nil && e.holder.lapsed() {
		st.end(e.holder)
	}
	return e
}

// election returns the settled election, made if need be.
func (st *state) election(name string) *election {
	if e := st.settled(name); e != nil {
		return e
	}
	e := &election{name: name, waits: make(map[*session]*wait)}
	st.elections[name] = e
	return e
}

func (st *state) record(name string) driver.Record {
	e := st.settled(name)
	if e == nil {
		return driver.Record{Election: name}
	}
	record := driver.Record{Election: name, Token: e.token}
	if e.holder != nil {
		record.Leader = e.holder.member
		record.Session = e.holder.id
		record.Value = bytes.Clone(e.value)
		record.AcquiredAt = e.acquiredAt
		record.ExpiresAt = e.holder.expires
	}
	return record
}

// give starts a term of the session, under a new token.
func (st *state) give(e *election, s *session, value []byte) {
	st.token++
	e.holder, e.token, e.value, e.acquiredAt = s, st.token, value, time.Now()
	s.held[e.name] = e
	st.unqueue(e, s)
	if w := e.waits[s]; w != nil {
		w.notify()
	}
	st.changed(e)
}

// clear ends the term and leaves the election vacant, without a word to those who wait.
func (st *state) clear(e *election) {
	if e.holder != nil {
		delete(e.holder.held, e.name)
	}
	e.holder, e.value, e.acquiredAt, e.asked = nil, nil, time.Time{}, false
	st.changed(e)
}

// vacate ends the term and hands the election to the next in line. When the queue is empty, it wakes those who wait beside it.
func (st *state) vacate(e *election) {
	st.clear(e)
	for len(e.queue) > 0 {
		next := e.queue[0]
		e.queue = e.queue[1:]
		delete(next.session.queued, e.name)
		if !next.session.lapsed() {
			st.give(e, next.session, next.value)
			return
		}
	}
	for _, w := range e.waits {
		w.notify()
	}
}

// enqueue gives the session a place in the queue, or keeps the one it has with another value.
func (st *state) enqueue(e *election, s *session, value []byte) {
	for i := range e.queue {
		if e.queue[i].session == s {
			e.queue[i].value = value
			return
		}
	}
	e.queue = append(e.queue, place{session: s, value: value})
	s.queued[e.name] = e
}

func (st *state) unqueue(e *election, s *session) {
	e.queue = slices.DeleteFunc(e.queue, func(p place) bool { return p.session == s })
	delete(s.queued, e.name)
}

// changed tells the election's watches.
func (st *state) changed(e *election) {
	for changed := range st.watches[e.name] {
		signal(changed)
	}
}

// signal fills a channel with a buffer of one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
