package zookeeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/gotenure/tenure/driver"
)

// Acquire makes the session a candidate, and finds out whether it is the first.
func (m *session) Acquire(ctx context.Context, bid driver.Bid) (driver.Record, error) {
	if err := driver.CheckName("election", bid.Election); err != nil {
		return driver.Record{}, err
	}
	if len(bid.Value) > maxValue {
		return driver.Record{}, fmt.Errorf("zookeeper: %w: value of %q has %d bytes: shorten it to at most %d", driver.ErrInvalid, bid.Election, len(bid.Value), maxValue)
	}
	if err := m.live(ctx); err != nil {
		return driver.Record{}, err
	}
	t, err := m.seat(ctx, bid.Election, true)
	if err != nil {
		return driver.Record{}, err
	}
	defer t.unlock()
	r, err := m.acquire(ctx, t, bid)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil:
		m.reported[t.election] = r.Token
		t.rouse()
	case errors.Is(err, driver.ErrHeld):
		delete(m.reported, t.election)
	default:
		t.rouse()
	}
	return r, err
}

func (m *session) acquire(ctx context.Context, t *seat, bid driver.Bid) (driver.Record, error) {
	data := dataOf(m.member, bid.Value)
	m.mu.Lock()
	sent := t.sent
	m.mu.Unlock()
	if sent {
		if err := m.review(ctx, t); err != nil {
			return driver.Record{}, err
		}
	}
	if h, ok, err := m.inherit(t, data); ok {
		return h.record, err
	}
	created := false
	for {
		if err := m.live(ctx); err != nil {
			return driver.Record{}, err
		}
		m.await(t) // what happens from now on is to be heard of
		m.mu.Lock()
		path := t.path
		m.mu.Unlock()
		if path == "" {
			if !bid.Queue {
				r, free, err := m.beside(ctx, t)
				if err != nil || !free {
					return r, err
				}
			}
			if err := m.create(ctx, t, data); err != nil {
				return driver.Record{}, err
			}
			created = true
		}
		at, ok, err := m.look(ctx, t)
		if err != nil {
			return driver.Record{}, err
		}
		if !ok {
			continue
		}
		m.mu.Lock()
		path, same := t.path, !t.later && bytes.Equal(t.data, data)
		m.mu.Unlock()
		if at.ahead != "" && !bid.Queue && created {
			if err := m.remove(ctx, path); err != nil {
				return driver.Record{}, err
			}
			m.gone(t)
			continue
		}
		if at.ahead == "" {
			if !same {
				err := m.publish(ctx, t, at.own.stat.Czxid, data)
				if errors.Is(err, zk.ErrNoNode) {
					m.gone(t)
					continue
				}
				if err != nil {
					return driver.Record{}, m.failed("publish the value of "+path, err)
				}
				at.own.data = data
			}
			h, err := holderOf(t.election, path, at.own)
			h.record.Value = bytes.Clone(bid.Value)
			return h.record, err
		}
		h, ok, err := m.holder(ctx, t, at.line)
		if err != nil {
			return driver.Record{}, err
		}
		if ok {
			return h.record, driver.ErrHeld
		}
	}
}

// await makes the seat one that waits again. The lock is held.
func (m *session) await(t *seat) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !t.waits {
		t.waits, t.wake = true, make(chan struct{})
	}
}

// beside looks who leads, without taking a place. free says that nobody does; else the record and the error are Acquire's.
func (m *session) beside(ctx context.Context, t *seat) (r driver.Record, free bool, err error) {
	for {
		q, err := m.line(ctx, t)
		if err != nil || len(q.candidates) == 0 {
			return r, err == nil, err
		}
		first := q.candidates[0].path
		m.hear(t, first)
		there, err := m.link.exists(ctx, first, true)
		if err != nil {
			return r, false, m.failed("watch "+first, err)
		}
		if !there {
			continue
		}
		h, ok, err := m.holder(ctx, t, q)
		if err != nil {
			return r, false, err
		}
		if ok {
			return h.record, false, driver.ErrHeld
		}
	}
}

// holder reads the leader's node; ok is false when it has just gone.
func (m *session) holder(ctx context.Context, t *seat, q line) (h holder, ok bool, err error) {
	path := q.candidates[0].path
	n, err := m.link.leading(ctx, q, false)
	if errors.Is(err, zk.ErrNoNode) {
		return h, false, nil
	}
	if err != nil {
		return h, false, m.failed("read "+path, err)
	}
	h, err = holderOf(t.election, path, n)
	return h, true, err
}

// publish replaces the value of a seat that leads, as long as its node is there. Who waits has nothing to publish yet.
func (m *session) publish(ctx context.Context, t *seat, czxid int64, data []byte) error {
	m.mu.Lock()
	t.later = true
	path := t.path
	m.mu.Unlock()
	_, err := call(ctx, m.link, func(c *zk.Conn) ([]zk.MultiResponse, error) {
		return c.Multi(&zk.CheckVersionRequest{Path: path, Version: -1}, &zk.SetDataRequest{Path: t.dir, Data: replacing(czxid, data), Version: -1})
	})
	return err
}

// create makes the seat's node. When the answer is lost, the next look finds the node by its mark.
func (m *session) create(ctx context.Context, t *seat, data []byte) error {
	m.mu.Lock()
	t.sent = true
	name := t.dir + "/" + candidatePrefix + t.mark + latch
	m.mu.Unlock()
	for {
		path, err := call(ctx, m.link, func(c *zk.Conn) (string, error) {
			return c.Create(name, data, zk.FlagEphemeralSequential, m.store.acl)
		})
		if errors.Is(err, zk.ErrNoNode) {
			// What is above is a container that was empty, or never was.
			if err := m.store.parents(ctx, m.link, name); err != nil {
				m.unsent(t)
				return err
			}
			continue
		}
		if err != nil {
			if errors.Is(err, zk.ErrNoAuth) || errors.Is(err, zk.ErrInvalidACL) {
				m.unsent(t)
			}
			return m.failed("make a node below "+t.dir, err)
		}
		m.mu.Lock()
		t.path, t.data, t.sent = path, data, false
		m.mu.Unlock()
		return nil
	}
}

// unsent notes that no node was made.
func (m *session) unsent(t *seat) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.sent = false
}

// remove deletes a node of this session. Its path is of one term or place only, so a removal that takes effect late touches no other.
func (m *session) remove(ctx context.Context, path string) error {
	_, err := call(ctx, m.link, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(path, -1) })
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	return m.failed("remove "+path, err)
}

// Await waits until the node ahead has gone, or the leader's for who has none.
func (m *session) Await(ctx context.Context, election string) error {
	if err := m.live(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	t := m.seats[election]
	if t == nil || !t.waits {
		m.mu.Unlock()
		return nil
	}
	wake := t.wake
	m.mu.Unlock()
	select {
	case <-wake:
		return nil
	case <-m.done:
		return driver.ErrSessionLost
	case <-m.store.ctx.Done():
		return errClosed
	case <-m.closed:
		return errSessionClosed
	case <-ctx.Done():
		return fmt.Errorf("zookeeper: %w", ctx.Err())
	}
}

// Release removes the node of the term, or whatever node there is.
func (m *session) Release(ctx context.Context, election string, token uint64) error {
	if err := m.store.ready(ctx); err != nil {
		return err
	}
	if err := m.live(ctx); err != nil {
		if errors.Is(err, driver.ErrSessionLost) {
			return nil // nothing is held
		}
		return err
	}
	t, err := m.seat(ctx, election, false)
	if t == nil || err != nil {
		return err
	}
	defer t.unlock()
	if token == 0 {
		m.mu.Lock()
		sent := t.sent
		m.mu.Unlock()
		if sent {
			if err := m.review(ctx, t); err != nil {
				return err
			}
		}
	}
	m.mu.Lock()
	path, mine := t.path, token == 0 || t.token == token
	if token == 0 || m.reported[election] == token {
		delete(m.reported, election)
	}
	m.mu.Unlock()
	if !mine {
		return nil
	}
	if path != "" {
		m.mu.Lock()
		t.deafen() // the own deletion is no news
		m.mu.Unlock()
		if err := m.remove(ctx, path); err != nil {
			if errors.Is(err, driver.ErrSessionLost) {
				return nil
			}
			return m.stale(t, err)
		}
		m.gone(t)
	}
	m.leave(t)
	return nil
}
