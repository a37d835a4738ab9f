package kubernetes

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// connections are all that a client has open.
type connections struct {
	base func(ctx context.Context, network, address string) (net.Conn, error)

	mu     sync.Mutex
	open   map[*connection]struct{}
	purged time.Time // when closeOld did its work last
}

// A connection knows when it last heard of the server.
type connection struct {
	net.Conn
	all    *connections
	made   time.Time
	heard  atomic.Int64 // time since made
	closed sync.Once
}

func newConnections(base func(ctx context.Context, network, address string) (net.Conn, error)) *connections {
	if base == nil {
		base = dialer.DialContext
	}
	return &connections{base: base, open: make(map[*connection]struct{})}
}

func (a *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	raw, err := a.base(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: raw, all: a, made: time.Now()}
	a.mu.Lock()
	a.open[c] = struct{}{}
	a.mu.Unlock()
	return c, nil
}

// close closes the connections that which chooses.
func (a *connections) close(which func(*connection) bool) {
	a.mu.Lock()
	var chosen []*connection
	for c := range a.open {
		if which(c) {
			chosen = append(chosen, c)
		}
	}
	a.mu.Unlock()
	for _, c := range chosen {
		_ = c.Close() // whoever uses it learns of it
	}
}

// closeOld closes all connections that are older than a few seconds, unless it has done so a few seconds ago.
func (a *connections) closeOld() {
	const few = 5 * time.Second
	now := time.Now()
	a.mu.Lock()
	if !a.purged.IsZero() && now.Sub(a.purged) < few {
		a.mu.Unlock()
		return
	}
	a.purged = now
	a.mu.Unlock()
	a.close(func(c *connection) bool { return now.Sub(c.made) > few })
}

func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.heard.Store(int64(time.Since(c.made)))
	}
	return n, err
}

func (c *connection) Close() error {
	c.closed.Do(func() {
		c.all.mu.Lock()
		delete(c.all.open, c)
		c.all.mu.Unlock()
	})
	return c.Conn.Close()
}

// silentSince reports whether the connection existed at a moment and has heard nothing of the server since.
func (c *connection) silentSince(at time.Time) bool {
	return c.made.Before(at) && c.made.Add(time.Duration(c.heard.Load())).Before(at)
}
