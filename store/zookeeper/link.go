package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	dialLimit      = time.Second     // for TCP; the next server is tried then
	handshakeLimit = 3 * time.Second // for the answer to the first message
	longestPause   = time.Second     // between two attempts to connect
)

// A link is one ZooKeeper session with its connection, which is made anew on another server when it breaks. Its methods may be called concurrently.
type link struct {
	store *Store
	conn  *zk.Conn
	quiet bool          // the library renews nothing by itself
	hush  time.Duration // how long a server may be silent over a request before the next one is tried

	// What the owner of the link wants to know; called from the library's goroutines, so they do not block. Nil: nothing.
	permit  func() bool // whether to connect again
	greeted func(h handshake, began time.Time)
	expired func()

	connections atomic.Int64 // that servers have greeted

	over chan struct{} // closed when the link has ended
	once sync.Once

	mu       sync.Mutex
	wire     *wire
	session  handshake
	up       chan struct{} // closed while there is a connection with a session
	isUp     bool
	failures int
	next     int
	events   int
	armed    map[watch]bool // what the server has promised to tell, and has not told yet
	hooks    map[string]map[*hook]struct{}
	finished bool // the server has confirmed the end
}

// A watch is what a server tells once.
type watch struct {
	path     string
	children bool
}

// A hook is called when something has happened to a node, or may have.
type hook struct{ call func(zk.EventType) }

// connect starts a link. What its owner wants to know is set in l before.
func (l *link) connect(timeout time.Duration) error {
	l.over, l.up = make(chan struct{}), make(chan struct{})
	l.armed, l.hooks = make(map[watch]bool), make(map[string]map[*hook]struct{})
	l.next = rand.IntN(len(l.store.config.Servers))
	if l.hush == 0 {
		l.hush = 2 * time.Second
	}
	conn, _, err := zk.Connect(l.store.config.Servers, timeout, zk.WithDialer(l.dial), zk.WithHostProvider(hosts{l}),
		zk.WithEventCallback(l.event), zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		return err
	}
	l.conn = conn
	return nil
}

// silent is the library's logger: what it has to say comes back in errors.
type silent struct{}

func (silent) Printf(string, ...any) {}

// hosts tells the library which server is next. Pauses between attempts are the dialer's.
type hosts struct{ l *link }

func (h hosts) Init([]string) error { return nil }
func (h hosts) Len() int            { return len(h.l.store.config.Servers) }
func (h hosts) Connected()          {}

// Next makes the library look whether it was closed, when the link is over.
func (h hosts) Next() (string, bool) {
	h.l.mu.Lock()
	defer h.l.mu.Unlock()
	servers := h.l.store.config.Servers
	server := servers[h.l.next%len(servers)]
	h.l.next++
	return server, h.l.ended()
}

func (l *link) ended() bool {
	select {
	case <-l.over:
		return true
	default:
		return false
	}
}

// dial makes a connection for the library.
func (l *link) dial(network, address string, _ time.Duration) (net.Conn, error) {
	l.mu.Lock()
	failures := l.failures
	l.failures++ // until the server has greeted
	l.mu.Unlock()
	if failures > 0 {
		pause := min(longestPause, 20*time.Millisecond<<min(failures, 10))
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-l.over:
			return nil, errClosed
		}
	}
	if l.ended() || l.permit != nil && !l.permit() {
		return nil, errClosed
	}
	w := &wire{quiet: l.quiet, began: time.Now(), greeted: l.hello, closed: l.confirmed}
	w.doomed = func() { l.down(w) }
	conn, err := l.store.dial(network, address)
	if err != nil {
		return nil, err
	}
	w.Conn = conn
	if err := conn.SetReadDeadline(time.Now().Add(handshakeLimit)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	l.mu.Lock()
	l.wire = w
	l.mu.Unlock()
	if l.ended() {
		_ = w.Close()
	}
	return w, nil
}

// hello hears what a server says first, before the library does.
func (l *link) hello(w *wire, h handshake) {
	if h.session == 0 || h.timeout <= 0 {
		return // expired: the library says so
	}
	l.connections.Add(1)
	l.mu.Lock()
	l.failures = 0
	l.session = h
	l.mu.Unlock()
	if l.greeted != nil {
		l.greeted(h, w.began)
	}
	if overheard != nil {
		overheard(w.RemoteAddr().String(), h)
	}
}

// overheard is told of every handshake by tests.
var overheard func(server string, h handshake)

func (l *link) confirmed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finished = true
}

// down forgets a connection that has ended.
func (l *link) down(w *wire) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wire == w && l.isUp {
		l.isUp, l.up = false, make(chan struct{})
	}
}

// event hears all that happens, in the order in which the server tells it, and before the answers to later requests.
func (l *link) event(e zk.Event) {
	if e.Type == zk.EventSession {
		switch e.State {
		case zk.StateHasSession:
			l.mu.Lock()
			if !l.isUp {
				l.isUp = true
				close(l.up)
			}
			l.mu.Unlock()
		case zk.StateDisconnected:
			l.mu.Lock()
			if l.isUp {
				l.isUp, l.up = false, make(chan struct{})
			}
			l.mu.Unlock()
			if !l.quiet {
				l.forget() // who watches wants to know how long it lasts
			}
		case zk.StateExpired:
			l.mu.Lock()
			l.session = handshake{}
			l.mu.Unlock()
			l.forget()
			if l.expired != nil {
				l.expired()
			}
		}
		return
	}
	l.mu.Lock()
	l.events++
	delete(l.armed, watch{e.Path, true})
	if e.Type != zk.EventNodeChildrenChanged {
		delete(l.armed, watch{e.Path, false})
	}
	var calls []func(zk.EventType)
	for h := range l.hooks[e.Path] {
		calls = append(calls, h.call)
	}
	l.mu.Unlock()
	for _, call := range calls {
		call(e.Type)
	}
}

// forget drops all watches and tells everybody to look again.
func (l *link) forget() {
	l.mu.Lock()
	l.events++
	clear(l.armed)
	var calls []func(zk.EventType)
	for _, hooks := range l.hooks {
		for h := range hooks {
			calls = append(calls, h.call)
		}
	}
	l.mu.Unlock()
	for _, call := range calls {
		call(zk.EventNotWatching)
	}
}

// hook calls f when something has happened to the node, until the returned function is called; f does not block.
func (l *link) hook(path string, f func(zk.EventType)) (remove func()) {
	h := &hook{f}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hooks[path] == nil {
		l.hooks[path] = make(map[*hook]struct{})
	}
	l.hooks[path][h] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.hooks[path], h)
		if len(l.hooks[path]) == 0 {
			delete(l.hooks, path)
		}
	}
}

// connected waits for a connection.
func (l *link) connected(ctx context.Context) (*wire, error) {
	for {
		l.mu.Lock()
		up, isUp, w := l.up, l.isUp, l.wire
		l.mu.Unlock()
		if isUp {
			return w, nil
		}
		select {
		case <-up:
		case <-l.over:
			return nil, errClosed
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", errDisconnected, ctx.Err())
		}
	}
}

// call makes a request. One that is given up may still have its effect, before those that are made later.
func call[T any](ctx context.Context, l *link, f func(*zk.Conn) (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	w, err := l.connected(ctx)
	if err != nil {
		return none, err
	}
	type answer struct {
		value T
		err   error
	}
	start, before := time.Now(), w.received.Load()
	answers := make(chan answer, 1)
	go func() {
		value, err := f(l.conn)
		answers <- answer{value, err}
	}()
	silence := time.NewTimer(l.hush)
	defer silence.Stop()
	for {
		select {
		case a := <-answers:
			if broken(a.err) {
				_ = w.Close() // so that nobody takes it for the current one
			}
			return a.value, a.err
		case <-l.over:
			return none, errClosed
		case <-silence.C:
			l.mu.Lock()
			current := l.wire
			l.mu.Unlock()
			if current == w && w.received.Load() == before {
				_ = w.Close() // servers drop the requests of a session that has ended; and another one may answer
			}
			w, before = current, current.received.Load() // the request may be sent through the next connection
			silence.Reset(l.hush)
		case <-ctx.Done():
			if time.Since(start) >= l.hush && w.received.Load() == before {
				_ = w.Close()
			}
			return none, ctx.Err()
		}
	}
}

// broken reports whether an error says that the connection has ended before there was an answer.
func broken(err error) bool {
	var network net.Error
	return errors.Is(err, zk.ErrConnectionClosed) || errors.As(err, &network)
}

// close ends the session, and reports whether the server has confirmed it. It takes no longer than about a second.
func (l *link) close() bool {
	l.once.Do(func() {
		l.mu.Lock()
		w, isUp := l.wire, l.isUp
		l.mu.Unlock()
		if isUp {
			l.conn.Close()
		}
		close(l.over)
		if !isUp {
			go l.conn.Close() // which waits for an answer that will not come
		}
		if w != nil {
			_ = w.Close()
		}
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.finished
}

// abandon ends the link and leaves the session to lapse.
func (l *link) abandon() {
	l.once.Do(func() {
		close(l.over)
		l.mu.Lock()
		w := l.wire
		l.mu.Unlock()
		if w != nil {
			_ = w.Close()
		}
		go l.conn.Close()
	})
}
