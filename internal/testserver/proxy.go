package testserver

import (
	"errors"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// A Direction is one of the two ways through a Proxy.
type Direction int

const (
	ToServer Direction = iota // requests
	ToClient                  // answers
)

// A Proxy passes TCP connections on to a server, and breaks them as networks do. Its methods may be called concurrently.
type Proxy struct {
	t    testing.TB
	addr string

	mu       sync.Mutex
	target   string
	listener net.Listener // nil while the proxy refuses connections
	links    map[*link]struct{}
	held     [2]chan struct{} // closed while the direction is open
	delay    [2]time.Duration
	closed   bool
	running  sync.WaitGroup
}

// StartProxy starts a proxy in front of a server's host and port; it runs until the test ends.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	open := make(chan struct{})
	close(open)
	p := &Proxy{t: t, target: target, links: map[*link]struct{}{}, held: [2]chan struct{}{open, open}}
	p.mu.Lock()
	err := p.listen("127.0.0.1:0")
	p.mu.Unlock()
	if err != nil {
		t.Fatalf("start a proxy: %v", err)
	}
	t.Cleanup(p.close)
	return p
}

// Addr returns the proxy's host and port.
func (p *Proxy) Addr() string { return p.addr }

// URL returns a URL of the server with the proxy's host and port in the place of the server's.
func (p *Proxy) URL(server string) string {
	p.t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		p.t.Fatalf("URL of the server: %v", err)
	}
	u.Host = p.addr
	return u.String()
}

// Blackhole lets nothing through in one direction until Heal: not a byte, nor the news that a side has closed. Connections can still
// be made. As in a network where TCP tries again and again, what was sent meanwhile arrives after Heal, unless Drop came first.
func (p *Proxy) Blackhole(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if isOpen(p.held[d]) {
		p.held[d] = make(chan struct{})
	}
}

// Delay makes everything that arrives from now on take so much longer in one direction.
func (p *Proxy) Delay(d Direction, by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay[d] = by
}

// Drop resets all connections of now on both sides. What was on its way is lost.
func (p *Proxy) Drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.reset()
	}
}

// Refuse refuses new connections until Heal, as a server that is down does. Those of now go on.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close() // accept ends; there is nothing to lose
		p.listener = nil
	}
}

// Heal ends Blackhole, Delay and Refuse.
func (p *Proxy) Heal() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open()
	if p.listener != nil || p.closed {
		return
	}
	if err := p.listen(p.addr); err != nil {
		p.t.Errorf("open the proxy again: %v", err)
	}
}

// Target has connections that are made from now on go to another server.
func (p *Proxy) Target(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Connections returns how many connections there are now.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// open is called with mu held.
func (p *Proxy) open() {
	for d := range p.held {
		if !isOpen(p.held[d]) {
			close(p.held[d])
		}
	}
	p.delay = [2]time.Duration{}
}

func isOpen(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// listen is called with mu held.
func (p *Proxy) listen(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	p.listener, p.addr = l, l.Addr().String()
	p.running.Go(func() { p.accept(l) })
	return nil
}

func (p *Proxy) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the client gave up while it was waiting
		}
		p.mu.Lock()
		target := p.target
		p.mu.Unlock()
		server, err := net.DialTimeout("tcp", target, 5*time.Second)
		if err != nil {
			reset(client)
			continue
		}
		p.add(newLink(client, server))
	}
}

func (p *Proxy) add(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		l.reset()
		return
	}
	p.links[l] = struct{}{}
	p.running.Go(func() {
		l.run(p.gate)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, l)
	})
}

// gate returns what a direction does to a chunk that has just arrived.
func (p *Proxy) gate(d Direction) (open <-chan struct{}, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[d], p.delay[d]
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.open()
	if p.listener != nil {
		_ = p.listener.Close() // the test is over
	}
	for l := range p.links {
		l.reset()
	}
	p.mu.Unlock()
	p.running.Wait()
}
