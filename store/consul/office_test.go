package consul_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gotenure/tenure"
)

// An office is what at most one of all the replicas of a test may hold at a time, as their work sees it.
type office struct {
	t testing.TB

	mu     sync.Mutex
	holder string
	terms  []string
	tokens map[string]uint64 // of the last term of each
}

func newOffice(t testing.TB) *office { return &office{t: t, tokens: make(map[string]uint64)} }

func (o *office) enter(who string, token uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holder != "" {
		o.t.Errorf("%s leads while %s does", who, o.holder)
	}
	for other, earlier := range o.tokens {
		if token != 0 && earlier >= token {
			o.t.Errorf("%s leads with token %d after %s did with %d", who, token, other, earlier)
		}
	}
	o.holder = who
	o.terms = append(o.terms, who)
	o.tokens[who] = token
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

// all returns who has led, in order.
func (o *office) all() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.terms)
}

func (o *office) led(who string) bool { return slices.Contains(o.all(), who) }

func (o *office) awaitLeader(kind string) {
	o.t.Helper()
	eventually(o.t, func() string {
		if who := o.leader(); !strings.HasPrefix(who, kind) || who == "" {
			return fmt.Sprintf("the leader is %q; want one of %q; the terms are %v", who, kind, o.all())
		}
		return ""
	})
}

// A replica is one process of a fleet. stop ends it in good order, and returns when it has ended.
type replica struct {
	name string
	stop func()
}

// startMember starts a replica that elects with this library, over a store of its own.
func startMember(t testing.TB, url string, o *office, election, name string, ttl time.Duration) replica {
	t.Helper()
	store := open(t, url)
	member, err := tenure.Join(t.Context(), store, tenure.Config{ID: name, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := member.Lead(ctx, election, func(ctx context.Context, term *tenure.Term) error {
			o.enter(name, term.Token())
			defer o.leave(name)
			<-ctx.Done()
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: Lead: %v", name, err)
		}
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		<-done
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := member.Leave(ctx); err != nil {
			t.Logf("%s: Leave: %v", name, err)
		}
	})
	t.Cleanup(stop)
	return replica{name, stop}
}
