package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/gotenure/tenure/store/sqlstore"
)

// ties tie sessions to the listener's connection, by a session-level advisory lock each.
type ties struct {
	listener *listener

	mu    sync.Mutex
	bound map[string]tie
}

type tie struct {
	key   int64
	epoch int // of the listener's connection
}

var _ sqlstore.Bound = (*ties)(nil)

func newTies(l *listener) *ties { return &ties{listener: l, bound: make(map[string]tie)} }

// Tie implements sqlstore.Bound.
func (t *ties) Tie(ctx context.Context, session string) (int64, error) {
	// Random, so that whoever else uses advisory locks in this database is not met: one in 2^62.
	key := 1 + rand.Int64N(1<<62)
	epoch, err := t.listener.do(ctx, "SELECT pg_advisory_lock_shared($1)", key)
	if err != nil {
		return 0, err
	}
	if epoch == 0 {
		return 0, errors.New("not connected")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bound[session] = tie{key, epoch}
	return key, nil
}

// Untie implements sqlstore.Bound. A lock that it fails to free ends with the connection.
func (t *ties) Untie(session string) {
	t.mu.Lock()
	b, ok := t.bound[session]
	delete(t.bound, session)
	t.mu.Unlock()
	if !ok || !t.listener.has(b.epoch) {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), answerLimit+time.Second)
		defer cancel()
		_, _ = t.listener.do(ctx, "SELECT pg_advisory_unlock_shared($1)", b.key)
	}()
}

// Lost implements sqlstore.Bound.
func (t *ties) Lost(session string) bool {
	t.mu.Lock()
	b, ok := t.bound[session]
	t.mu.Unlock()
	return !ok || !t.listener.has(b.epoch)
}
