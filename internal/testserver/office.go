package testserver

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

// An Office is what at most one of all the replicas of a test may hold at a time, as their work sees it. The test fails when two do, or when a token does not exceed
// those before it. Its methods may be called concurrently.
type Office struct {
	// Revoked says that an administrator ends sessions: who is next may hear of it before who led. It is set before the first term.
	Revoked bool

	t testing.TB

	mu      sync.Mutex
	holder  string
	token   uint64
	terms   []string
	vacated time.Time
	gaps    []string
	longest time.Duration // of the gaps
}

// NewOffice returns an office that nobody holds.
func NewOffice(t testing.TB) *Office { return &Office{t: t} }

// Enter says that somebody begins to work. Token 0 is that of a rival that has none.
func (o *Office) Enter(who string, token uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holder != "" && !o.Revoked {
		o.t.Errorf("%s leads while %s does", who, o.holder)
	}
	if token != 0 && token <= o.token {
		o.t.Errorf("%s leads with token %d after token %d; the terms are %v", who, token, o.token, o.terms)
	}
	if !o.vacated.IsZero() {
		gap := time.Since(o.vacated)
		o.longest = max(o.longest, gap)
		o.gaps = append(o.gaps, fmt.Sprintf("%s to %s: %v", o.terms[len(o.terms)-1], who, gap.Round(time.Millisecond)))
	}
	o.holder, o.token = who, max(token, o.token)
	o.terms = append(o.terms, who)
}

// Leave says that somebody has stopped working. Of one who does not work it does no harm.
func (o *Office) Leave(who string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holder == who {
		o.holder, o.vacated = "", time.Now()
	}
}

// Leader returns who works, or "".
func (o *Office) Leader() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.holder
}

// All returns who has led, in order.
func (o *Office) All() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.terms)
}

// Led reports whether somebody has led.
func (o *Office) Led(who string) bool { return slices.Contains(o.All(), who) }

// Gaps says for how long nobody led, from whom to whom, in order; and returns the longest of these times.
func (o *Office) Gaps() (gaps []string, longest time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.gaps), o.longest
}

// AwaitLeader waits until somebody leads whose name begins so, and returns the name.
func (o *Office) AwaitLeader(kind string) (who string) {
	o.t.Helper()
	Eventually(o.t, func() string {
		if who = o.Leader(); who == "" || !strings.HasPrefix(who, kind) {
			return fmt.Sprintf("the leader is %q; want one of %q; the terms are %v", who, kind, o.All())
		}
		return ""
	})
	return who
}

// Stand has a member hold the office under a name whenever it leads. The function that it returns ends that in good order, and returns when it has ended; the test's end
// calls it too.
func (o *Office) Stand(member *tenure.Member, election, name string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := member.Lead(ctx, election, func(ctx context.Context, term *tenure.Term) error {
			o.Enter(name, term.Token())
			defer o.Leave(name)
			<-ctx.Done()
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			o.t.Errorf("%s: Lead: %v", name, err)
		}
		leaving, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := member.Leave(leaving); err != nil {
			o.t.Logf("%s: Leave: %v", name, err) // the server may be away
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	o.t.Cleanup(stop)
	return stop
}
