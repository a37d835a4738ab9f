package tenure

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/gotenure/tenure/driver"
)

// Leadership is who leads an election at one moment, as the store says.
type Leadership struct {
	Election string
	Leader   string // the leading member's ID; empty when vacant or unknown
	Session  string // its session's ID
	Token    uint64 // of the current term, or of the last one when vacant
	Value    []byte // what the leader publishes

	// AcquiredAt and ExpiresAt are by the store's clock; zero when vacant, or when the store does not know.
	AcquiredAt, ExpiresAt time.Time

	// Err says why it is unknown who leads. nil: it is known.
	Err error
}

// Vacant reports whether it is known that nobody leads.
func (l Leadership) Vacant() bool { return l.Err == nil && l.Session == "" }

func leadershipOf(r driver.Record) Leadership {
	return Leadership{Election: r.Election, Leader: r.Leader, Session: r.Session, Token: r.Token, Value: r.Value, AcquiredAt: r.AcquiredAt, ExpiresAt: r.ExpiresAt}
}

// Leader reads who leads an election, linearizably: an answer that may be stale is an error instead.
func Leader(ctx context.Context, store driver.Store, election string) (Leadership, error) {
	if err := driver.CheckName("election", election); err != nil {
		return Leadership{}, err
	}
	rec, err := store.Get(ctx, election)
	if err != nil {
		err = fmt.Errorf("read who leads %s: %w", election, err)
		return Leadership{Election: election, Err: err}, err
	}
	return leadershipOf(rec), nil
}

// Observe yields who leads an election, and then every later state, until the context ends; it may skip intermediate ones, never the last. When the store
// cannot be asked it yields a Leadership with Err once, and goes on trying. It ends by itself only after an Err that wraps driver.ErrInvalid.
func Observe(ctx context.Context, store driver.Store, election string) iter.Seq[Leadership] {
	return func(yield func(Leadership) bool) {
		if err := driver.CheckName("election", election); err != nil {
			yield(Leadership{Election: election, Err: err})
			return
		}
		wait, told := observeRetryMin, false
		for {
			for rec, err := range store.Watch(ctx, election) {
				if ctx.Err() != nil {
					return
				}
				l := leadershipOf(rec)
				if err != nil {
					l = Leadership{Election: election, Err: fmt.Errorf("watch %s: %w", election, err)}
				} else {
					wait = observeRetryMin
				}
				if !told || err == nil {
					if !yield(l) || errors.Is(err, driver.ErrInvalid) {
						return
					}
				}
				told = err != nil
			}
			if sleep(ctx, rand.N(wait)) != nil {
				return
			}
			wait = min(2*wait, observeRetryMax)
		}
	}
}

// Bounds of the waits, with full jitter, before a failed watch is made anew.
const (
	observeRetryMin = 100 * time.Millisecond
	observeRetryMax = 5 * time.Second
)

// Leader reads who leads an election; see the function Leader.
func (m *Member) Leader(ctx context.Context, election string) (Leadership, error) {
	return Leader(ctx, m.store, election)
}

// Observe yields who leads an election; see the function Observe.
func (m *Member) Observe(ctx context.Context, election string) iter.Seq[Leadership] {
	return Observe(ctx, m.store, election)
}
