package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/gotenure/tenure/driver"
)

const (
	minTTL = 2 * time.Second
	maxTTL = 24 * time.Hour

	// maxValue leaves half of the 256 KiB that the annotations of an object may have to others; base64 takes a third more.
	maxValue = 96 << 10
)

var (
	errInvalid = driver.ErrInvalid
	errClosed  = errors.New("kubernetes: store is closed")
)

// Options are what may be chosen. The zero value is fine.
type Options struct {
	// Namespace has the Leases. Empty: that of the pod or of the kubeconfig's context; New takes "default" then.
	Namespace string

	// PodLabel is the prefix of a label that the pod bears while it leads: with "leader.example.com" the pod that leads election orders has the label
	// leader.example.com/orders=true, by which a Service can select it. Empty: no label.
	PodLabel string

	// Pod is the name of the pod that this process runs in, for PodLabel. Empty: the variable POD_NAME, else the host name, which is a pod's name
	// unless it uses the host's network.
	Pod string

	// Logger is told of what goes wrong where no call could return it: watches that break, labels that cannot be set. Nil: silent.
	Logger *slog.Logger
}

// A Store is a driver.Store and a driver.Asker on the Leases of a namespace.
type Store struct {
	client    *client
	namespace string
	opts      Options
	labels    *labels
	access    *access
	seen      *observations

	done   chan struct{} // closed by Close
	ctx    context.Context
	cancel context.CancelFunc
	closes sync.Once

	mu        sync.Mutex
	elections map[string]*election // those that somebody uses, by name
	running   sync.WaitGroup
	closed    bool
}

var (
	_ driver.Store = (*Store)(nil)
	_ driver.Asker = (*Store)(nil)
)

// New makes a store of an API server. It has connections and a rate of its own: nothing that the configuration's other users do delays a renewal. It asks the server at once
// what it may do, and returns an error that wraps driver.ErrInvalid and names what it may not.
func New(ctx context.Context, config *rest.Config, opts Options) (*Store, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	c, err := newClient(config)
	if err != nil {
		return nil, err
	}
	s := &Store{
		client: c, namespace: opts.Namespace, opts: opts, seen: newObservations(),
		done: make(chan struct{}), elections: make(map[string]*election),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.access = &access{client: c, namespace: s.namespace, granted: make(map[string]bool)}
	s.labels = newLabels(s)
	if err := s.access.open(ctx, opts.PodLabel != ""); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Info says what the store is like.
func (s *Store) Info() driver.Info {
	return driver.Info{
		Name: "kubernetes", MinTTL: minTTL, MaxTTL: maxTTL, Push: true,
		Token: "resourceVersion that the acquiring write replaced",
		Clock: "each observer's own: how long the Lease has stood unchanged there",
		Caveats: []string{
			"A process that has just started shows a dead leader as leading until the lease has stood unchanged before its eyes for its whole duration.",
			"Restoring the cluster's etcd from a backup takes the tokens back, unless it is done with etcdutl's --bump-revision.",
			"A leader that is a client-go elector has no token.",
		},
	}
}

// Close ends all that the store has open. Sessions still open are left to lapse.
func (s *Store) Close() error {
	s.closes.Do(func() {
		s.mu.Lock()
		s.closed = true
		close(s.done)
		s.mu.Unlock()
		s.cancel()
		s.client.close()
		s.running.Wait()
		s.client.close() // a connection may have been under way
	})
	return nil
}

// ready returns an error when a call comes too late.
func (s *Store) ready(ctx context.Context) error {
	select {
	case <-s.done:
		return errClosed
	default:
	}
	if ctx.Err() != nil {
		return fmt.Errorf("kubernetes: %w", context.Cause(ctx))
	}
	return nil
}

// Open makes a session. It sends nothing: a session exists at the server from the first election that it holds.
func (s *Store) Open(ctx context.Context, member string, ttl time.Duration) (driver.Session, error) {
	if err := driver.CheckName("member", member); err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	if ttl < minTTL || ttl > maxTTL {
		return nil, fmt.Errorf("kubernetes: %w: TTL is %v: a Lease takes %v to %v", errInvalid, ttl, minTTL, maxTTL)
	}
	if ttl%time.Second != 0 {
		return nil, fmt.Errorf("kubernetes: %w: TTL is %v: a Lease counts whole seconds: use %v or %v", errInvalid, ttl, ttl.Truncate(time.Second), ttl.Truncate(time.Second)+time.Second)
	}
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	return newSession(s, member, ttl), nil
}

// Get reads one election's record.
func (s *Store) Get(ctx context.Context, election string) (driver.Record, error) {
	l, err := s.read(ctx, election)
	if err != nil {
		return driver.Record{}, err
	}
	return l.record(election, s.seen.expired(l))
}

// read checks the name and reads the Lease.
func (s *Store) read(ctx context.Context, election string) (*lease, error) {
	if err := driver.CheckName("election", election); err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	l, err := s.get(ctx, LeaseName(election))
	if err != nil {
		return nil, s.access.explain(ctx, LeaseName(election), err)
	}
	if l.exists() {
		if got, err := l.election(); err != nil || got != election {
			return nil, l.corrupt("it is not that of election %q", election)
		}
	}
	return l, nil
}

func (s *Store) path(name string) string {
	path := "/apis/coordination.k8s.io/v1/namespaces/" + url.PathEscape(s.namespace) + "/leases"
	if name != "" {
		path += "/" + name
	}
	return path
}

// get reads a Lease, by a quorum of etcd.
func (s *Store) get(ctx context.Context, name string) (*lease, error) {
	l, err := s.call(ctx, http.MethodGet, s.path(name), nil)
	if apierrors.IsNotFound(err) {
		s.seen.forget(name)
		return absent(name, 0), nil
	}
	return l, err
}

// put replaces the state of a Lease that the object was edited from, and no other.
func (s *Store) put(ctx context.Context, name string, object map[string]any) (*lease, error) {
	return s.call(ctx, http.MethodPut, s.path(name), object)
}

// create makes a vacant Lease.
func (s *Store) create(ctx context.Context, election string) (*lease, error) {
	l, err := s.call(ctx, http.MethodPost, s.path(""), created(election))
	if apierrors.IsNotFound(err) {
		return nil, s.noNamespace(err)
	}
	return l, err
}

func (s *Store) noNamespace(err error) error {
	return fmt.Errorf("kubernetes: %w: namespace %q does not exist: create it, or name another: %w", errInvalid, s.namespace, err)
}

// exists returns an error when the namespace does not exist. Lists of it are empty. Who may not read namespaces does not learn it.
func (s *Store) exists(ctx context.Context) error {
	if err := s.client.do(ctx, http.MethodGet, "/api/v1/namespaces/"+s.namespace, nil, nil, nil); apierrors.IsNotFound(err) {
		return s.noNamespace(err)
	}
	return nil
}

func (s *Store) call(ctx context.Context, method, path string, object map[string]any) (*lease, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	var body any
	if object != nil {
		body = object
	}
	var text json.RawMessage
	err := s.client.do(ctx, method, path, nil, body, &text)
	if err != nil {
		if apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) || apierrors.IsBadRequest(err) {
			err = fmt.Errorf("%w: %w", errInvalid, err)
		}
		return nil, err
	}
	l, err := parseLease(text)
	if err != nil {
		return nil, err
	}
	s.seen.expired(l) // its life begins to count
	return l, nil
}

// page is an answer to a list.
type page struct {
	Metadata struct {
		ResourceVersion string
		Continue        string
	}
	Items []json.RawMessage
}

// list calls f with each page.
func (s *Store) list(ctx context.Context, query url.Values, f func(page) error) error {
	for {
		var p page
		if err := s.client.do(ctx, http.MethodGet, s.path(""), query, nil, &p); err != nil {
			return err
		}
		if err := f(p); err != nil {
			return err
		}
		if p.Metadata.Continue == "" {
			return nil
		}
		query.Set("continue", p.Metadata.Continue)
	}
}

// List yields the records whose election starts with prefix. Every Lease of the namespace is an election, also those that other programs made.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		if err := s.ready(ctx); err != nil {
			yield(driver.Record{}, err)
			return
		}
		type item struct {
			name   string
			record driver.Record
			err    error
		}
		var items []item
		empty := true
		const perPage = 500
		err := s.list(ctx, url.Values{"limit": {strconv.Itoa(perPage)}}, func(p page) error {
			empty = empty && len(p.Items) == 0
			for _, text := range p.Items {
				l, err := parseLease(text)
				if err != nil {
					return err
				}
				i := item{name: l.name}
				if name, err := l.election(); err != nil {
					i.err = err
				} else {
					i.name = name
					i.record, i.err = l.record(name, s.seen.expired(l))
				}
				if strings.HasPrefix(i.name, prefix) {
					items = append(items, i)
				}
			}
			return nil
		})
		if err == nil && empty {
			err = s.exists(ctx)
		}
		if err != nil {
			yield(driver.Record{}, s.access.explain(ctx, "", err))
			return
		}
		slices.SortFunc(items, func(a, b item) int { return cmp.Compare(a.name, b.name) })
		for _, i := range items {
			if !yield(i.record, i.err) {
				return
			}
		}
	}
}

// Ask asks the holder of a term to resign.
func (s *Store) Ask(ctx context.Context, election string, token uint64) error {
	for range maxConflicts {
		l, err := s.read(ctx, election)
		if err != nil {
			return err
		}
		r, err := l.record(election, s.seen.expired(l))
		switch {
		case err != nil:
			return err
		case r.Held() && r.Token == 0 && token == 0:
			return fmt.Errorf("kubernetes: %q is led by a client of another kind (%s), which cannot be asked: end its process to make it step down: %w", election, r.Leader, errors.ErrUnsupported)
		case token == 0 || !r.Held() || r.Token != token:
			return fmt.Errorf("kubernetes: term %d of %s: %w", token, election, driver.ErrNotHeld)
		case l.asked():
			return nil
		}
		_, err = s.put(ctx, l.name, l.edited(func(_, annotations map[string]any) {
			annotations[askedKey] = strconv.FormatUint(token, 10)
		}))
		if !isChanged(err) {
			return s.access.explain(ctx, l.name, err)
		}
	}
	return contended(election)
}

// maxConflicts bounds how often a call tries to replace what others replace all the time.
const maxConflicts = 50

func contended(election string) error {
	return fmt.Errorf("kubernetes: Lease of %s was changed by others %d times while it was to be written", election, maxConflicts)
}

// isChanged reports whether a write failed because the Lease is not what it was any more.
func isChanged(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) && !errors.Is(err, errInvalid)
}

// rejected reports whether the API server has said that a write did not take place. What a proxy or an overloaded server answers may leave that open.
func rejected(err error) bool {
	return isChanged(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}

func (s *Store) warn(message string, args ...any) {
	if s.opts.Logger != nil {
		s.opts.Logger.Warn("kubernetes: "+message, args...)
	}
}
