package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/gotenure/tenure/driver"
)

// maxValue leaves room in a message, which servers limit to 1 MiB by default (jute.maxbuffer).
const maxValue = 1_000_000

const (
	readerTimeout = 10 * time.Second // of the session that reads; its connection is found dead after two thirds of it
	readerIdle    = 5 * time.Second  // how long that session stays when nobody reads
)

// A Config says where the servers are. Servers is needed; the rest may be left zero.
type Config struct {
	Servers []string // HOST:PORT each, of one ensemble

	// Chroot is the path below which all nodes lie: "" or, for instance, "/team". Its nodes are made when they are missing.
	Chroot string

	// User and Password are given to the servers with the digest scheme. The nodes that are made then belong to this user alone, unless OpenACL
	// leaves them to everybody.
	User, Password string
	OpenACL        bool

	// TLS makes the connections TLS, to the servers' secureClientPort. Nil: they are not encrypted.
	TLS *tls.Config
}

// A Store is a driver.Store and a driver.Asker on ZooKeeper.
type Store struct {
	config Config
	layout layout
	acl    []zk.ACL

	minTimeout, maxTimeout time.Duration // of ZooKeeper sessions, as the servers grant them

	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu     sync.Mutex
	reader *link // nil: nobody reads
	using  int   // by how many calls it is used
	idle   *time.Timer
	links  map[*link]struct{} // all that are open
}

var (
	_ driver.Store = (*Store)(nil)
	_ driver.Asker = (*Store)(nil)
)

// Open connects to the servers of a URL:
//
//	zookeeper://user:password@host:2181,host:2181/chroot?acl=open
//
// Several hosts are servers of one ensemble. User and password are for the digest scheme. Parameters are acl (creator: nodes belong to the user that made them,
// the default with a user; open: they are everybody's, the default without one), tls (true: with the system's authorities), cacert (a file with the
// authorities instead), cert and key (files of a client certificate) and servername (instead of the host's name in the server's certificate). Others are an
// error. Open asks a server at once; none of its errors shows the password.
func Open(ctx context.Context, url string) (*Store, error) {
	config, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	return New(ctx, config)
}

// New connects to the servers of a configuration. An error that wraps driver.ErrInvalid says what has to be changed.
func New(ctx context.Context, config Config) (*Store, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	s := &Store{config: config, layout: layout(config.Chroot), links: make(map[*link]struct{}), acl: zk.WorldACL(zk.PermAll)}
	if config.User != "" && !config.OpenACL {
		s.acl = zk.AuthACL(zk.PermAll)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if err := s.check(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// check learns what sessions the servers grant, from the first that answers, and whether the nodes may be read.
func (s *Store) check(ctx context.Context) error {
	var errs []error
	for _, server := range s.config.Servers {
		err := s.learn(ctx, server)
		if err == nil {
			l, release, err := s.reading(ctx)
			if err != nil {
				return err
			}
			defer release()
			if _, err := s.leader(ctx, l, "0"); err != nil && !errors.Is(err, driver.ErrCorrupt) {
				return err
			}
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", server, err))
		if ctx.Err() != nil {
			break
		}
	}
	return failure("connect", errors.Join(errs...))
}

func (s *Store) learn(ctx context.Context, server string) error {
	for _, bound := range []struct {
		ask time.Duration
		got *time.Duration
	}{{time.Millisecond, &s.minTimeout}, {maxAsked, &s.maxTimeout}} {
		conn, err := s.dial("tcp", server)
		if err != nil {
			return err
		}
		limit := time.Now().Add(handshakeLimit)
		if deadline, ok := ctx.Deadline(); ok && deadline.Before(limit) {
			limit = deadline
		}
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		err = conn.SetDeadline(limit)
		if err == nil {
			*bound.got, err = probe(conn, bound.ask)
		}
		stop()
		_ = conn.Close() // the answer is known, or there is none
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("no answer such as ZooKeeper gives: %w", err)
		}
		if *bound.got <= 0 {
			return errProtocol
		}
	}
	return nil
}

// maxAsked is the longest session that is asked for. It only catches mistakes of units: servers grant 20 of their ticks by default, 40 s.
const maxAsked = 36 * time.Hour

// dial makes one connection to a server.
func (s *Store) dial(network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.ctx, dialLimit)
	defer cancel()
	if s.config.TLS == nil {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	ctx, cancel = context.WithTimeout(s.ctx, handshakeLimit)
	defer cancel()
	return (&tls.Dialer{Config: s.config.TLS}).DialContext(ctx, network, address)
}

// Info tells what the store can do. The bounds of a TTL follow from those that the servers set for sessions (minSessionTimeout, maxSessionTimeout).
func (s *Store) Info() driver.Info {
	return driver.Info{
		Name: "zookeeper", MinTTL: ttlOf(s.minTimeout + time.Millisecond), MaxTTL: ttlOf(s.maxTimeout),
		Push: true, Queue: true, SharedSessions: true,
		Token: "czxid of the leader's node",
		Clock: "the leading ZooKeeper server's",
		Caveats: []string{
			"A member that dies is replaced within one and a half TTLs, and a tick of the server: ZooKeeper's followers renew sessions without asking the leader.",
			"When the servers elect another leader among themselves, all sessions begin anew: a member that died is then replaced later.",
			"Restoring ZooKeeper from old data takes transactions back, and tokens with them.",
		},
	}
}

// ttlOf is the inverse of timeoutOf, rounded to milliseconds.
func ttlOf(timeout time.Duration) time.Duration { return (timeout * 2 / 3).Truncate(time.Millisecond) }

// timeoutOf returns the timeout of the ZooKeeper session for a TTL.
func timeoutOf(ttl time.Duration) time.Duration {
	return (ttl*3/2 + time.Millisecond - 1).Truncate(time.Millisecond)
}

// Close ends what the store has opened. Sessions of members are left to lapse. It takes no longer than about a second.
func (s *Store) Close() error {
	s.cancel()
	s.mu.Lock()
	if s.idle != nil {
		s.idle.Stop()
	}
	reader := s.reader
	s.reader = nil
	var members []*link
	for l := range s.links {
		if l != reader {
			members = append(members, l)
		}
	}
	clear(s.links)
	s.mu.Unlock()
	for _, l := range members {
		l.abandon()
	}
	if reader != nil {
		reader.close()
	}
	return nil
}

// start opens a link and gives the servers user and password.
func (s *Store) start(ctx context.Context, l *link, timeout time.Duration) error {
	l.store = s
	if err := l.connect(timeout); err != nil {
		return failure("connect", err)
	}
	s.mu.Lock()
	s.links[l] = struct{}{}
	s.mu.Unlock()
	if s.ctx.Err() != nil { // Close has not seen it, or has
		s.drop(l)
		return errClosed
	}
	_, err := l.connected(ctx)
	if err == nil && s.config.User != "" {
		_, err = call(ctx, l, func(c *zk.Conn) (struct{}, error) {
			return struct{}{}, c.AddAuth("digest", []byte(s.config.User+":"+s.config.Password))
		})
	}
	if err != nil {
		s.drop(l)
		return failure("connect", err)
	}
	return nil
}

// drop ends a link without waiting for the servers to say so.
func (s *Store) drop(l *link) {
	s.forget(l)
	go func() {
		if !l.close() {
			s.bury(l)
		}
	}()
}

// bury ends a session that its servers still may have: a server that was away may otherwise go on with it for another timeout when it comes back, and
// what it holds is held by nobody.
func (s *Store) bury(l *link) {
	l.mu.Lock()
	h := l.session
	l.mu.Unlock()
	if h.session == 0 {
		return // it never began, or is over
	}
	for end, i := time.Now().Add(h.timeout), 0; time.Now().Before(end); i++ {
		if s.finish(s.config.Servers[i%len(s.config.Servers)], h) == nil {
			return
		}
		select {
		case <-time.After(longestPause/2 + rand.N(longestPause/2)):
		case <-s.ctx.Done():
			return
		}
	}
}

// finishAnywhere asks each server once to end a link's session, and reports whether one has.
func (s *Store) finishAnywhere(l *link) bool {
	l.mu.Lock()
	h := l.session
	l.mu.Unlock()
	return h.session != 0 && slices.ContainsFunc(s.config.Servers, func(server string) bool { return s.finish(server, h) == nil })
}

// finish has one server end a session. An error says that it is not known to have ended.
func (s *Store) finish(server string, h handshake) error {
	conn, err := s.dial("tcp", server)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the server closes it too
	if err := conn.SetDeadline(time.Now().Add(handshakeLimit)); err != nil {
		return err
	}
	// Both at once: going on with a session renews it, and must not be all that arrives.
	if _, err := conn.Write(append(greeting(h), closing()...)); err != nil {
		return err
	}
	answer, err := greeted(conn)
	if err != nil || answer.session != h.session {
		return err
	}
	_, err = readFrame(conn)
	return err
}

func (s *Store) forget(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.links, l)
}

// reading returns the link that reads, for as long as it takes to call release.
func (s *Store) reading(ctx context.Context) (l *link, release func(), err error) {
	if err := s.ready(ctx); err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	if l = s.reader; l != nil {
		s.using++
		s.mu.Unlock()
		return l, s.release(l), nil
	}
	s.mu.Unlock()
	l = &link{}
	if err := s.start(ctx, l, min(max(readerTimeout, s.minTimeout), s.maxTimeout)); err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.reader; other != nil { // another call was faster
		delete(s.links, l)
		go l.close()
		l = other
	}
	if s.ctx.Err() != nil {
		delete(s.links, l)
		go l.close()
		return nil, nil, errClosed
	}
	s.reader = l
	s.using++
	return l, s.release(l), nil
}

// release returns what ends a use of the link that reads. When nobody has used it for a while it ends: its pings are a load.
func (s *Store) release(l *link) func() {
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.using--
		if s.using > 0 || s.reader != l {
			return
		}
		if s.idle != nil {
			s.idle.Stop()
		}
		s.idle = time.AfterFunc(readerIdle, func() {
			s.mu.Lock()
			if s.using > 0 || s.reader != l {
				s.mu.Unlock()
				return
			}
			s.reader = nil
			delete(s.links, l)
			s.mu.Unlock()
			l.close()
		})
	})
}

// parents makes the nodes above a path that are missing, as containers.
func (s *Store) parents(ctx context.Context, l *link, path string) error {
	for i := 1; i < len(path); i++ {
		if path[i] != '/' {
			continue
		}
		above := path[:i]
		// Asking first spares a transaction, and a permission to create that a member may not have above the chroot.
		there, err := l.exists(ctx, above, false)
		if err != nil || there {
			if err != nil && !errors.Is(err, zk.ErrNoAuth) {
				return failure("look for "+above, err)
			}
			continue
		}
		_, err = call(ctx, l, func(c *zk.Conn) (string, error) { return c.CreateContainer(above, nil, zk.FlagContainer, s.acl) })
		if err != nil && !errors.Is(err, zk.ErrNodeExists) && !errors.Is(err, zk.ErrNoNode) { // a container above may have gone meanwhile
			return failure("make "+above, err)
		}
	}
	return nil
}
