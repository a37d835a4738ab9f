package consul

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/gotenure/tenure/driver"
)

const (
	// DefaultMinTTL is what Consul takes as the least TTL of a session unless its configuration says otherwise.
	DefaultMinTTL = 10 * time.Second

	// maxTTL and maxLockDelay are Consul's.
	maxTTL       = 24 * time.Hour
	maxLockDelay = time.Minute
)

// Options of a store. The zero value is complete.
type Options struct {
	// Prefix stands before all keys, a slash at its end included if there is to be one. Empty: an election's key is its name.
	Prefix string

	// LockDelay is how long Consul keeps an election from everybody after the session of its leader was destroyed or has lapsed, at most one minute. It does not
	// apply to a leader that resigns. 0: none; see the package documentation for why.
	LockDelay time.Duration

	// MinTTL is the servers' session_ttl_min, where it was changed. 0: DefaultMinTTL.
	MinTTL time.Duration
}

func (o *Options) complete() error {
	if o.MinTTL == 0 {
		o.MinTTL = DefaultMinTTL
	}
	switch {
	case o.MinTTL < time.Millisecond || o.MinTTL > maxTTL:
		return fmt.Errorf("consul: %w: min-ttl %v: give the servers' session_ttl_min, from 1ms to %v", driver.ErrInvalid, o.MinTTL, maxTTL)
	case o.LockDelay < 0 || o.LockDelay > maxLockDelay:
		return fmt.Errorf("consul: %w: lock-delay %v: choose one from 0s to %v", driver.ErrInvalid, o.LockDelay, maxLockDelay)
	case o.Prefix == "":
		return nil
	case strings.HasPrefix(o.Prefix, "/") || strings.Contains(o.Prefix, "//") || driver.CheckName("prefix", o.Prefix) != nil:
		return fmt.Errorf("consul: %w: prefix %q: use 1 to 255 bytes without a slash at the front, double slashes and control characters", driver.ErrInvalid, o.Prefix)
	}
	for _, segment := range strings.Split(o.Prefix, "/") {
		if dots(segment) != segment {
			return fmt.Errorf("consul: %w: prefix %q: remove the segment %q", driver.ErrInvalid, o.Prefix, segment)
		}
	}
	return nil
}

var errClosed = errors.New("consul: store is closed")

// A Store is a handle onto the elections in a Consul datacenter. Its methods may be called concurrently.
type Store struct {
	client *api.Client
	opts   Options
	layout layout
	idle   *http.Transport // whose idle connections Close closes; nil: the caller brought the client

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	mu     sync.Mutex     // held to begin what wg counts, and to end ctx: nothing begins afterwards
	wg     sync.WaitGroup // of what runs for its sessions

	// Whether Consul has ever allowed what the bits say: from then on a refusal may be a token that is being replaced.
	allowed atomic.Uint32

	names names
}

var (
	_ driver.Store = (*Store)(nil)
	_ driver.Asker = (*Store)(nil)
)

// New makes a store of a client, which stays the caller's. It makes no request. Its HTTP transport must not limit how long a request takes to less than 15 seconds: waits are long
// requests.
func New(client *api.Client, opts Options) (*Store, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	s := &Store{client: client, opts: opts, layout: layout(opts.Prefix)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Open makes a store of a URL:
//
//	consul://:TOKEN@HOST:8500/?parameter=value
//
// Host and token may be left out: what the URL does not say is taken from CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN and the like, as consul's own command does. Parameters:
//
//	prefix, lock-delay, min-ttl          as in Options
//	token-file                           a file with the ACL token, read anew for each request: it may be replaced
//	datacenter                           another than the agent's own
//	tls                                  true: HTTPS; it is implied by the four below
//	cacert, cert, key, servername        files in PEM form, and the name that the server's certificate is to have
//
// Open makes no request.
func Open(url string) (*Store, error) {
	config, transport, opts, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	client, err := api.NewClient(config)
	if err != nil {
		return nil, fmt.Errorf("consul: %w: store URL: client: %w", driver.ErrInvalid, err)
	}
	s, err := New(client, opts)
	if err != nil {
		return nil, err
	}
	s.idle = transport
	return s, nil
}

// Info tells what the store can do.
func (s *Store) Info() driver.Info {
	return driver.Info{
		Name: "consul", MinTTL: s.opts.MinTTL, MaxTTL: maxTTL, Push: true, SharedSessions: true,
		Token: "ModifyIndex of the write that took the lock",
		Clock: "the leading Consul server's",
		Caveats: []string{
			"Consul ends a session up to two TTLs after its last renewal, and later when its servers elect another leader among themselves: a member that died is replaced that late.",
			"Each wait and each watch is an HTTP request that stays open: an agent takes 200 connections from one address unless limits.http_max_conns_per_client is raised.",
			"There is one place in the queue: a leader that resigns hands over to whoever has it. When it dies, or nobody has it, all its followers try.",
			"Keys that are copied to another datacenter's cluster (consul kv import) begin anew with its indexes, and tokens with them.",
		},
	}
}

// Close ends what the store has started, and idle connections if Open made them. It takes no longer than a moment.
func (s *Store) Close() error {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	s.wg.Wait()
	if s.idle != nil {
		s.idle.CloseIdleConnections()
	}
	return nil
}

// run runs f in the background, unless the store is closed. Close waits for it.
func (s *Store) run(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.wg.Go(f)
	return true
}

// ready returns an error when the context or the store has ended.
func (s *Store) ready(ctx context.Context) error {
	if s.ctx.Err() != nil {
		return errClosed
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("consul: %w", err)
	}
	return nil
}

// bound returns a context that ends with the caller's and with the store.
func (s *Store) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// names remembers the names of sessions, which never change.
type names struct {
	mu   sync.Mutex
	byID map[string]string
}

// maxNames bounds the memory of a store that sees ever new sessions.
const maxNames = 10_000

func (n *names) get(id string) (string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name, ok := n.byID[id]
	return name, ok
}

func (n *names) put(id, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byID == nil || len(n.byID) >= maxNames {
		n.byID = make(map[string]string)
	}
	n.byID[id] = name
}
