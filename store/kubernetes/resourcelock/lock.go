// Package resourcelock makes any store of this library a lock for client-go's leaderelection, so that its electors, and the managers of controller-runtime, elect through
// PostgreSQL, etcd or another store instead of the API server.
//
//	lock, err := resourcelock.New(store, "orders", identity, 15*time.Second)
//	mgr, err := ctrl.NewManager(config, ctrl.Options{LeaderElection: true, LeaderElectionResourceLockInterface: lock, LeaderElectionReleaseOnCancel: true})
//
// The store decides who leads and when a lease has run out, by its own clock; the elector still polls and still decides for itself when to stop. What client-go's election does not do is
// not made up for here: it does not await the work before it releases, and has no token. Programs that can use package tenure directly get both, and a handover without
// polling. Token tells guards the token of the present term.
package resourcelock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	client "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/gotenure/tenure/driver"
)

// Durations for an elector or a manager: client-go's and controller-runtime's defaults.
const (
	LeaseDuration = 15 * time.Second
	RenewDeadline = 10 * time.Second
	RetryPeriod   = 2 * time.Second
)

// A Lock is a resourcelock.Interface on one election of a store. It belongs to one elector. Its methods may be called concurrently.
type Lock struct {
	store    driver.Store
	election string
	identity string
	ttl      time.Duration

	token atomic.Uint64 // of the term that the session holds; 0: it holds none

	mu          sync.Mutex
	session     driver.Session // nil: none is open
	lost        time.Time      // when a term ended that was not released
	transitions int            // changes of the holder that this process has seen
	seen        string         // the holder's session when it was looked at last
}

var _ client.Interface = (*Lock)(nil)

// New makes a lock. identity names this process to people. ttl is the elector's LeaseDuration, 15 s by default; RenewDeadline and RetryPeriod together must not exceed five
// sixths of it, as they do not by default.
func New(store driver.Store, election, identity string, ttl time.Duration) (*Lock, error) {
	if err := driver.CheckName("election", election); err != nil {
		return nil, err
	}
	if err := driver.CheckName("identity", identity); err != nil {
		return nil, err
	}
	if info := store.Info(); ttl < info.MinTTL || ttl > info.MaxTTL {
		return nil, fmt.Errorf("%w: TTL is %v: %s takes %v to %v", driver.ErrInvalid, ttl, info.Name, info.MinTTL, info.MaxTTL)
	}
	return &Lock{store: store, election: election, identity: identity, ttl: ttl}, nil
}

// Identity returns the name of this process.
func (l *Lock) Identity() string { return l.identity }

// Describe returns the election's name, and the store's.
func (l *Lock) Describe() string { return l.store.Info().Name + "/" + l.election }

// RecordEvent does nothing: the store has no events.
func (l *Lock) RecordEvent(string) {}

// Token returns the fencing token of the term that the elector holds, 0 when it holds none.
func (l *Lock) Token() uint64 { return l.token.Load() }

// Get returns what the store says. A vacant election is a record without holder, which every elector tries to take.
func (l *Lock) Get(ctx context.Context) (*client.LeaderElectionRecord, []byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, err := l.store.Get(ctx, l.election)
	if err != nil {
		return nil, nil, err
	}
	if r.Session != l.seen && r.Held() {
		if l.seen != "" && l.transitions < math.MaxInt32 {
			l.transitions++
		}
		l.seen = r.Session
	}
	record := &client.LeaderElectionRecord{
		HolderIdentity: l.holder(r), LeaseDurationSeconds: seconds(l.ttl), LeaderTransitions: l.transitions,
		AcquireTime: metav1.NewTime(r.AcquiredAt), RenewTime: metav1.NewTime(r.ExpiresAt),
	}
	// An elector takes a record that has not changed for its duration for a dead holder's. Here the store tells that, so each record differs.
	raw, err := json.Marshal(struct {
		Record any
		Read   int64
	}{record, time.Now().UnixNano()})
	return record, raw, err
}

// holder returns the identity for the elector, which takes what equals its own for itself: another process of the same name is not.
func (l *Lock) holder(r driver.Record) string {
	switch {
	case !r.Held():
		return ""
	case l.session != nil && r.Session == l.session.ID():
		return l.identity
	case r.Leader == l.identity:
		return r.Session + " (another process named " + l.identity + ")"
	}
	return r.Leader
}

// seconds rounds up: what is vacant sooner is found vacant.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// Create is Update.
func (l *Lock) Create(ctx context.Context, record client.LeaderElectionRecord) error {
	return l.Update(ctx, record)
}

// Update takes or renews the lock for the elector, or releases it when the record has no holder. Any error means that the elector must not count on it.
func (l *Lock) Update(ctx context.Context, record client.LeaderElectionRecord) error {
	// The lease counts from before the request, the elector from the answer: a slow one is none.
	ctx, cancel := context.WithTimeout(ctx, l.ttl/6)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case record.HolderIdentity == "":
		return l.release(ctx)
	case record.HolderIdentity != l.identity:
		return fmt.Errorf("%w: the holder of %s is to be %q: this lock is that of %q", driver.ErrInvalid, l.election, record.HolderIdentity, l.identity)
	case l.token.Load() != 0:
		return l.renew(ctx)
	}
	return l.take(ctx)
}

func (l *Lock) renew(ctx context.Context) error {
	grant, err := l.session.KeepAlive(ctx)
	switch {
	case errors.Is(err, driver.ErrSessionLost):
		return l.lose("the lease has lapsed")
	case err != nil:
		return err
	case grant.Holds != nil && grant.Holds[l.election] != l.token.Load():
		return l.lose("somebody has deleted or overwritten the record")
	case grant.Asked[l.election] != 0:
		return l.lose("somebody asked for it")
	}
	return nil
}

// lose ends a term against the elector's will. An elector that found the election vacant just then would take it again and go on as if nothing had happened, though another may have
// led meanwhile; within a TTL it gives up instead.
func (l *Lock) lose(why string) error {
	l.token.Store(0)
	l.lost = time.Now()
	l.drop()
	return l.conflict(why)
}

func (l *Lock) take(ctx context.Context) error {
	if !l.lost.IsZero() && time.Since(l.lost) < l.ttl {
		return l.conflict("this process has lost it, and has to stop first")
	}
	if l.session != nil {
		// The outcome of an attempt is unknown. Its session must live when it wins.
		if _, err := l.session.KeepAlive(ctx); errors.Is(err, driver.ErrSessionLost) {
			l.drop()
		} else if err != nil {
			return err
		}
	}
	if l.session == nil {
		s, err := l.store.Open(ctx, l.identity, l.ttl)
		if err != nil {
			return err
		}
		l.session = s
	}
	r, err := l.session.Acquire(ctx, driver.Bid{Election: l.election})
	switch {
	case errors.Is(err, driver.ErrHeld):
		l.drop()
		return l.conflict("it is held by " + r.Leader)
	case errors.Is(err, driver.ErrSessionLost):
		l.drop()
		return err
	case err != nil:
		return err
	}
	l.token.Store(r.Token)
	return nil
}

// conflict is the error that electors expect when another was faster.
func (l *Lock) conflict(why string) error {
	return apierrors.NewConflict(schema.GroupResource{Group: "gotenure.github.io", Resource: "elections"}, l.election, errors.New(why))
}

func (l *Lock) release(ctx context.Context) error {
	if l.session == nil {
		return nil
	}
	if err := l.session.Close(ctx); err != nil {
		return err
	}
	l.session = nil
	l.token.Store(0)
	return nil
}

// drop ends a session that holds nothing any more, or should not, in the background.
func (l *Lock) drop() {
	lost := l.session
	l.session = nil
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
		defer cancel()
		_ = lost.Close(ctx) // else it lapses
	}()
}

const closeLimit = 5 * time.Second
