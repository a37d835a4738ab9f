package zookeeper_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/zookeeper"
)

// patience bounds every wait for something that must happen.
const patience = testserver.Patience

var deadline, eventually = testserver.Deadline, testserver.Eventually

// use opens a store that is closed when the test ends.
func use(t testing.TB, storeURL string) *zookeeper.Store {
	t.Helper()
	s := open(t, storeURL)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	return s
}

func openSession(t testing.TB, s *zookeeper.Store, member string, ttl time.Duration) driver.Session {
	t.Helper()
	m, err := s.Open(deadline(t), member, ttl)
	if err != nil {
		t.Fatalf("open a session: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = m.Close(ctx) // the test may have ended it, or its server
	})
	return m
}

// campaign acquires, and waits as long as another holds the election.
func campaign(ctx context.Context, s driver.Session, election string) (driver.Record, error) {
	for {
		r, err := s.Acquire(ctx, driver.Bid{Election: election, Queue: true})
		if !errors.Is(err, driver.ErrHeld) {
			return r, err
		}
		if err := s.Await(ctx, election); err != nil {
			return r, err
		}
	}
}

func acquire(t testing.TB, s driver.Session, election string) driver.Record {
	t.Helper()
	r, err := campaign(deadline(t), s, election)
	if err != nil {
		t.Fatalf("acquire %q: %v", election, err)
	}
	return r
}

// An office is what only one may hold at a time. It watches that.
type office struct {
	t testing.TB

	// revoked says that an administrator ends sessions: who is next may hear of it before who led.
	revoked bool

	mu     sync.Mutex
	holder string
	terms  []string
	token  uint64
}

func (o *office) enter(who string, token uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holder != "" && !o.revoked {
		o.t.Errorf("%s leads while %s does", who, o.holder)
	}
	if token != 0 && token <= o.token { // 0: a rival that has none
		o.t.Errorf("%s leads with token %d after token %d", who, token, o.token)
	}
	o.holder, o.token = who, max(token, o.token)
	o.terms = append(o.terms, who)
}

func (o *office) leave(who string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holder == who {
		o.holder = ""
	}
}

func (o *office) leader() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.holder
}

func (o *office) all() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.terms)
}

// awaitLeader waits until somebody leads whose name begins so, and returns the name.
func (o *office) awaitLeader(kind string) (who string) {
	o.t.Helper()
	eventually(o.t, func() string {
		if who = o.leader(); who == "" || !strings.HasPrefix(who, kind) {
			return "the leader is " + who + "; want one of " + kind
		}
		return ""
	})
	return who
}

// join starts a member that holds the office whenever it leads, and returns what ends it in good order.
func join(t testing.TB, s driver.Store, o *office, election, name string, ttl time.Duration) (stop func()) {
	t.Helper()
	member, err := tenure.Join(deadline(t), s, tenure.Config{ID: name, TTL: ttl, StablePeriod: 100 * time.Millisecond})
	if err != nil {
		t.Fatalf("join: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			term, err := member.Campaign(ctx, election)
			if err != nil {
				if ctx.Err() == nil {
					t.Errorf("campaign of %s: %v", name, err)
				}
				return
			}
			o.enter(name, term.Token())
			select {
			case <-term.Context().Done():
			case <-ctx.Done():
			}
			o.leave(name)
			leaving, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			_ = term.Resign(leaving) // the server may be away
			cancel()
		}
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = member.Leave(ctx) // the server may be away
	})
	t.Cleanup(stop)
	return stop
}
