package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/gotenure/tenure/driver"
)

const (
	// minTTL is the least that a server grants at its default election timeout of 1 s: one and a half of that, rounded up.
	minTTL = 2 * time.Second

	// maxTTL only catches mistakes of units.
	maxTTL = 24 * time.Hour

	// maxValue leaves room in a request, which the server limits to 1.5 MiB by default.
	maxValue = 1 << 20
)

// Connections are probed when nothing has come for this long, and given up when the probe is not answered. gRPC does not probe more often, and servers
// end connections that are probed more often than every 5 s.
const (
	probeAfter   = 10 * time.Second
	probeTimeout = 3 * time.Second
)

// Options are what may be chosen. The zero value is fine.
type Options struct {
	// Prefix stands before all keys. All members of an election need the same; for etcdctl elect and package concurrency it is a part of the
	// election's name. Empty: none.
	Prefix string
}

// A Store is a driver.Store and a driver.Asker on etcd.
type Store struct {
	client *clientv3.Client
	layout layout
	own    bool // the client is closed with the store

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	once   sync.Once

	members members
	line    line
}

var (
	_ driver.Store = (*Store)(nil)
	_ driver.Asker = (*Store)(nil)
)

// Open connects to the servers of a URL:
//
//	etcd://user:password@host:2379,host:2379?cacert=ca.pem&cert=client.pem&key=client.key&prefix=team/
//
// Several hosts are nodes of one cluster. Parameters are prefix (Options.Prefix), tls (true: with the system's authorities), cacert (a file with the authorities
// instead), cert and key (files of a client certificate, read anew for each connection so that they can be renewed in place). Others are an error. Open asks
// the cluster once: an error that wraps driver.ErrInvalid says what has to be changed; none shows the password.
func Open(ctx context.Context, url string) (*Store, error) {
	config, opts, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, failure(ctx, "connect", err)
	}
	s := newStore(client, opts)
	s.own = true
	if err := s.check(ctx); err != nil {
		if ctx.Err() != nil {
			if reason := unreachable(config); reason != nil {
				err = fmt.Errorf("%w: %w", err, reason)
			}
		}
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// New makes a store that uses the application's client, and leaves it open on Close. The client needs a DialKeepAliveTime (10 s) and a
// DialKeepAliveTimeout (3 s): without them it does not notice a connection that has died in silence, and neither does the store.
func New(client *clientv3.Client, opts Options) *Store { return newStore(client, opts) }

func newStore(client *clientv3.Client, opts Options) *Store {
	s := &Store{client: client, layout: layout(opts.Prefix)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.line.start(s.ctx, client.ActiveConnection())
	return s
}

// check asks the cluster for something that every member must be allowed to read, and for its version.
func (s *Store) check(ctx context.Context) error {
	if _, err := s.get(ctx, s.layout.member("0")); err != nil {
		return err
	}
	status, err := s.client.Status(ctx, s.client.Endpoints()[0])
	if err != nil {
		return nil //nolint:nilerr // the node may be down while the cluster is not, and a user may not be allowed to ask
	}
	major, rest, _ := strings.Cut(status.Version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, _ := strconv.Atoi(major)
	b, _ := strconv.Atoi(minor)
	if a < 3 || a == 3 && b < 5 {
		return fmt.Errorf("etcd: %w: the server has version %s: version 3.5 or newer is needed", driver.ErrInvalid, status.Version)
	}
	return nil
}

// Info tells what the store can do.
func (s *Store) Info() driver.Info {
	return driver.Info{
		Name: "etcd", MinTTL: minTTL, MaxTTL: maxTTL,
		Push: true, Queue: true, SharedSessions: true,
		Token: "create revision of the leader's key",
		Clock: "the leading etcd server's",
		Caveats: []string{
			"When the etcd servers elect another leader among themselves, all leases begin anew: a member that died is then replaced later, within two TTLs.",
			"Restoring etcd from a snapshot takes revisions back, and tokens with them: restore with --bump-revision and --mark-compacted.",
		},
	}
}

// Close ends what the store has started, and the connections if Open made them. It takes no longer than a moment.
func (s *Store) Close() (err error) {
	s.once.Do(func() {
		s.cancel()
		s.line.wait()
		if s.own {
			if err = s.client.Close(); errors.Is(err, context.Canceled) {
				err = nil // it says so of its own context
			}
		}
	})
	return err
}

// begin returns the context of a call: it ends with the caller's and with the store, and asks the server not to wait for a leader of the cluster.
func (s *Store) begin(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if s.ctx.Err() != nil {
		return nil, nil, errClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("etcd: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return clientv3.WithRequireLeader(ctx), func() { stop(); cancel() }, nil
}

// failed translates an error of a call, which the store's end may have caused.
func (s *Store) failed(ctx context.Context, doing string, err error) error {
	if err != nil && s.ctx.Err() != nil {
		return errClosed
	}
	return failure(ctx, doing, err)
}

// txn makes a transaction.
func (s *Store) txn(ctx context.Context, doing string, cmp []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	call, cancel, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	r, err := s.client.Txn(call).If(cmp...).Then(then...).Else(otherwise...).Commit()
	return r, s.failed(ctx, doing, err)
}

// get makes a linearizable read.
func (s *Store) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	call, cancel, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	r, err := s.client.Get(call, key, opts...)
	return r, s.failed(ctx, "read "+strconv.Quote(key), err)
}

// Ask asks the holder of the term with this token to resign. A leader that is no member of this library cannot be asked: the error then wraps
// errors.ErrUnsupported.
func (s *Store) Ask(ctx context.Context, election string, token uint64) error {
	if err := checkElection(election); err != nil {
		return err
	}
	first, _, err := s.first(ctx, election)
	if err != nil {
		return err
	}
	if first == nil || uint64(first.CreateRevision) != token {
		return driver.ErrNotHeld
	}
	_, session, _ := s.layout.split(string(first.Key))
	member, ours, err := s.memberOf(ctx, session, 0)
	if err != nil {
		return err
	}
	if !ours {
		return fmt.Errorf("etcd: %q is led by a client of another kind (lease %s), which cannot be asked: delete its key %q to make it step down: %w",
			election, session, first.Key, errors.ErrUnsupported)
	}
	r, err := s.txn(ctx, "ask the leader of "+strconv.Quote(election), []clientv3.Cmp{term(string(first.Key), token)},
		[]clientv3.Op{clientv3.OpPut(s.layout.asked(member, session, election), strconv.FormatUint(token, 10), clientv3.WithLease(leaseOf(session)))}, nil)
	switch {
	case errors.Is(err, driver.ErrSessionLost):
		return driver.ErrNotHeld
	case err != nil:
		return err
	case !r.Succeeded:
		return driver.ErrNotHeld
	}
	return nil
}

// quiet is the logger of a client: what it has to say comes back in errors.
func quiet() *zap.Logger { return zap.NewNop() }

// lost reports whether an error of the client says that a lease is gone.
func lost(err error) bool {
	return errors.Is(err, rpctypes.ErrLeaseNotFound) || errors.Is(err, driver.ErrSessionLost)
}
