package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// An election is what a store knows of one Lease, from all answers that concern it. While it is followed, a watch brings every change. Its methods may be called
// concurrently.
type election struct {
	store       *Store
	name, lease string
	users       int // guarded by Store.mu

	mu      sync.Mutex
	newest  *lease        // nil: nothing is known
	failure error         // why the watch does not run; nil while it does
	dead    string        // the life that has ended, as a read has confirmed
	news    chan struct{} // closed and replaced when one of the above changes
	follows int
	stop    context.CancelFunc
	cut     context.CancelFunc    // ends the watch that runs, for another; nil: none does
	holders map[*session]struct{} // who wants to be told
}

// use returns the election of a name. The caller calls leave.
func (s *Store) use(name string) *election {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.elections[name]
	if e == nil {
		e = &election{store: s, name: name, lease: LeaseName(name), news: make(chan struct{}), holders: make(map[*session]struct{})}
		s.elections[name] = e
	}
	e.users++
	return e
}

func (e *election) leave() {
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	if e.users--; e.users == 0 {
		delete(e.store.elections, e.name)
	}
}

// A view is what is known at one moment.
type view struct {
	lease   *lease // nil: nothing is known
	dead    bool   // its holder is
	failure error
	news    <-chan struct{} // closed when there is more
}

func (e *election) view() view {
	e.mu.Lock()
	defer e.mu.Unlock()
	return view{e.newest, e.newest != nil && e.newest.holder != "" && e.newest.life() == e.dead, e.failure, e.news}
}

func (e *election) known() *lease { return e.view().lease }

// learn takes note of a state, unless a newer one is known.
func (e *election) learn(l *lease) {
	e.mu.Lock()
	if l.version == 0 || e.newest != nil && l.version <= e.newest.version {
		e.mu.Unlock()
		return
	}
	e.newest = l
	e.tell()
	var holders []*session
	for s := range e.holders {
		holders = append(holders, s)
	}
	e.mu.Unlock()
	for _, s := range holders {
		s.notice(e, l)
	}
}

// takenBack is told of the version of what a read has found, and of the newest state that was known when it was sent. When the server has older data than before, as after a
// restore from a backup, what it said before counts no more.
func (e *election) takenBack(before *lease, version uint64) {
	if before == nil || version == 0 || version >= before.version {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.newest != nil && e.newest.version > version {
		e.newest, e.dead = nil, ""
		if e.cut != nil {
			e.cut()
		}
	}
}

// tell wakes who waits for news. The mutex is held.
func (e *election) tell() {
	close(e.news)
	e.news = make(chan struct{})
}

func (e *election) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failure == nil && err == nil {
		return
	}
	e.failure = err
	e.tell()
}

// follow has the election watched until as many calls of unfollow.
func (e *election) follow() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.follows++; e.follows > 1 {
		return
	}
	e.failure = errStarting
	ctx, cancel := context.WithCancel(e.store.ctx)
	e.stop = cancel
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	if e.store.closed {
		return
	}
	e.store.running.Go(func() { e.run(ctx) })
	e.store.running.Go(func() { e.mourn(ctx) })
}

func (e *election) unfollow() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.follows--; e.follows == 0 {
		e.stop()
	}
}

// errStarting is the state of a watch that has not been made yet.
var errStarting = errors.New("kubernetes: the watch is being made")

// Bounds of the waits, with full jitter, before a failed watch is made anew. Waiters learn of a vacancy so much later when the watch broke just then.
const (
	retryMin = 50 * time.Millisecond
	retryMax = 5 * time.Second

	// setupLimit bounds the requests that the watch itself makes. No caller's context does.
	setupLimit = 10 * time.Second
)

// run reads the Lease and watches it, again and again.
func (e *election) run(ctx context.Context) {
	wait := retryMin
	version, byList, told := "", false, false
	for ctx.Err() == nil {
		began := time.Now()
		var err error
		if version == "" {
			version, err = e.begin(ctx, byList)
		}
		ran := err == nil
		if ran {
			e.fail(nil)
			version, err = e.stream(ctx, version)
		}
		if ctx.Err() != nil {
			return
		}
		// A watch that the server ends in good order, after half an hour or so, goes on where it was.
		if errors.Is(err, io.EOF) && time.Since(began) > retryMax {
			wait = retryMin
			continue
		}
		if ran && time.Since(began) > retryMax {
			wait, told = retryMin, false
		}
		tooOld := apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
		first := tooOld && !byList
		version, byList = "", tooOld
		if first {
			continue // a Lease that nobody has written for minutes, which is no fault
		}
		err = e.store.access.explain(ctx, e.lease, fmt.Errorf("kubernetes: watch Lease %s: %w", e.lease, err))
		if !told {
			told = true // once for each time that it breaks, not for each attempt to make it anew
			e.store.warn("a watch broke", "lease", e.lease, "error", err)
		}
		e.fail(err)
		if pause(ctx, rand.N(wait)) != nil {
			return
		}
		wait = min(2*wait, retryMax)
	}
}

func (e *election) query() url.Values {
	return url.Values{"fieldSelector": {"metadata.name=" + e.lease}}
}

// begin reads the Lease, and returns the version to watch from. A list of the one Lease takes some fifty times as long as a read, since the API server makes certain that its
// cache is up to date, but it has a version also when there is no Lease, and one that is not too old for a watch.
func (e *election) begin(ctx context.Context, byList bool) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, setupLimit)
	defer cancel()
	before := e.known()
	if !byList {
		l, err := e.store.get(ctx, e.lease)
		if err != nil {
			return "", err
		}
		if l.exists() {
			e.takenBack(before, l.version)
			e.learn(l)
			return text(child(l.object, "metadata"), "resourceVersion"), nil
		}
	}
	err = e.store.list(ctx, e.query(), func(p page) error {
		version = p.Metadata.ResourceVersion
		number, err := parseVersion(version)
		if err != nil {
			return err
		}
		l := absent(e.lease, number)
		for _, text := range p.Items {
			if l, err = parseLease(text); err != nil {
				return err
			}
		}
		e.store.seen.expired(l)
		e.takenBack(before, l.version)
		e.learn(l)
		return nil
	})
	return version, err
}

// stream watches from a version until something fails, and returns the version to go on from.
func (e *election) stream(ctx context.Context, version string) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e.mu.Lock()
	e.cut = cancel
	e.mu.Unlock()
	query := e.query()
	query.Set("watch", "true")
	query.Set("allowWatchBookmarks", "true")
	query.Set("resourceVersion", version)
	err := e.store.client.watch(ctx, e.store.path(""), query, func(got event) error {
		if got.Type == "BOOKMARK" {
			var object map[string]any
			if err := json.Unmarshal(got.Object, &object); err != nil {
				return err
			}
			version = text(child(object, "metadata"), "resourceVersion")
			return nil
		}
		l, err := parseLease(got.Object)
		if err != nil {
			return err
		}
		version = text(child(l.object, "metadata"), "resourceVersion")
		if got.Type == "DELETED" {
			e.store.seen.forget(l.name)
			l = absent(l.name, l.version)
		}
		e.store.seen.expired(l)
		e.learn(l)
		return nil
	})
	return version, err
}

// mourn finds out when the holder is dead. It asks the server before it says so: the watch may be the one that is.
func (e *election) mourn(ctx context.Context) {
	for ctx.Err() == nil {
		v := e.view()
		var due <-chan time.Time
		if v.lease != nil && v.lease.exists() && !v.dead {
			if at, held := e.store.seen.expiry(v.lease); held {
				if left := time.Until(at); left > 0 {
					due = time.After(left)
				} else if e.confirm(ctx, v.lease) != nil {
					due = time.After(rand.N(retryMax))
				} else {
					continue
				}
			}
		}
		select {
		case <-due:
		case <-v.news:
		case <-ctx.Done():
		}
	}
}

// confirm reads the Lease whose holder seems to be dead.
func (e *election) confirm(ctx context.Context, dead *lease) error {
	ctx, cancel := context.WithTimeout(ctx, setupLimit)
	defer cancel()
	before := e.known()
	l, err := e.store.get(ctx, e.lease)
	if err != nil {
		return err
	}
	e.takenBack(before, l.version)
	e.learn(l)
	if !l.exists() || l.life() != dead.life() {
		if !l.exists() {
			// The watch brings the version of the deletion; until then nothing is certain.
			return errStarting
		}
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dead = dead.life()
	e.tell()
	return nil
}

// write replaces the newest state with what edit makes of it, and takes note of the outcome.
func (e *election) write(ctx context.Context, object map[string]any) (*lease, error) {
	l, err := e.store.put(ctx, e.lease, object)
	if err != nil {
		return nil, err
	}
	e.learn(l)
	return l, nil
}

// fetch reads the newest state. Its version is 0 when there is no Lease.
func (e *election) fetch(ctx context.Context) (*lease, error) {
	before := e.known()
	l, err := e.store.get(ctx, e.lease)
	if err != nil {
		return nil, err
	}
	if l.exists() {
		if got, err := l.election(); err != nil || got != e.name {
			return nil, l.corrupt("it is not that of election %q", e.name)
		}
	}
	e.takenBack(before, l.version)
	e.learn(l)
	return l, nil
}

// make creates the vacant Lease.
func (e *election) make(ctx context.Context) (*lease, error) {
	l, err := e.store.create(ctx, e.name)
	if err != nil {
		return nil, err
	}
	e.learn(l)
	return l, nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
