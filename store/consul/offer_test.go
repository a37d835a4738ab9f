package consul_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/consul"
)

// A gate is what a session's requests pass on their way to the server. It can hold a transaction up, or its answer.
type gate struct {
	t     testing.TB
	addr  string
	mu    sync.Mutex
	holds []*hold
}

// A hold is of the first transaction whose text has all that is looked for.
type hold struct {
	with    []string
	answer  bool          // the transaction passes, its answer does not
	arrived chan struct{} // closed when it is held
	passed  chan struct{} // closed when it, or its answer, has passed
	open    func()
	opened  <-chan struct{}
}

func startGate(t testing.TB, server string) *gate {
	t.Helper()
	target, err := url.Parse("http://" + server)
	if err != nil {
		t.Fatal(err)
	}
	next := httputil.NewSingleHostReverseProxy(target)
	next.ErrorLog = log.New(io.Discard, "", 0) // it says of each wait that was given up
	g := &gate{t: t}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/txn" {
			next.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		h := g.take(string(body))
		if h != nil && !h.answer {
			close(h.arrived)
			<-h.opened
		}
		answer := httptest.NewRecorder()
		late := r.Clone(context.WithoutCancel(r.Context())) // its caller may have given it up
		late.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(answer, late)
		if h != nil && h.answer {
			close(h.arrived)
			<-h.opened
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes()) // its caller may have gone
		if h != nil {
			close(h.passed)
		}
	}))
	t.Cleanup(front.Close)
	g.addr = front.Listener.Addr().String()
	return g
}

func (g *gate) take(text string) *hold {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, h := range g.holds {
		all := true
		for _, part := range h.with {
			all = all && strings.Contains(text, part)
		}
		if all {
			g.holds = append(g.holds[:i:i], g.holds[i+1:]...)
			return h
		}
	}
	return nil
}

func (g *gate) hold(answer bool, with ...string) *hold {
	opened, open := context.WithCancel(context.Background())
	g.t.Cleanup(open)
	h := &hold{with: with, answer: answer, arrived: make(chan struct{}), passed: make(chan struct{}), open: open, opened: opened.Done()}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holds = append(g.holds, h)
	return h
}

// offerTo and withdrawFrom are what the transactions of an heir have in their text.
func offerTo(leader driver.Session) []string {
	return []string{`"Verb":"lock"`, leader.ID() + "/orders"}
}

func withdrawFrom(leader driver.Session) []string {
	return []string{`"Verb":"check-session"`, leader.ID() + "/orders"}
}

func within(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("%s: not within %v", what, patience)
	}
}

// A queue is a leader, others, and one who waits behind a gate.
type queue struct {
	t             testing.TB
	admin         *api.Client
	store         *consul.Store
	gate          *gate
	leader, heir  driver.Session
	held          driver.Record
	awaited       chan error
	cancelAwaited context.CancelFunc
}

func newQueue(t testing.TB) *queue {
	t.Helper()
	server := testserver.StartConsul(t)
	q := &queue{t: t, admin: client(t, server.URL()), store: open(t, server.URL()), gate: startGate(t, server.Addr())}
	q.leader, q.heir = session(t, q.store, "leader", time.Minute), session(t, open(t, through(q.gate.addr)), "heir", time.Minute)
	q.held = acquire(t, q.leader, "orders", "")
	return q
}

// awaits has the heir stand and wait in the background.
func (q *queue) awaits() {
	q.t.Helper()
	if _, err := q.heir.Acquire(q.t.Context(), bid("orders")); !errors.Is(err, driver.ErrHeld) {
		q.t.Fatalf("Acquire: %v; want ErrHeld", err)
	}
	ctx, cancel := context.WithCancel(q.t.Context())
	q.awaited, q.cancelAwaited = make(chan error, 1), cancel
	go func(awaited chan error) { awaited <- q.heir.Await(ctx, "orders") }(q.awaited)
}

// gives up what awaits began.
func (q *queue) givesUp() {
	q.t.Helper()
	q.cancelAwaited()
	if err := <-q.awaited; !errors.Is(err, context.Canceled) {
		q.t.Fatalf("Await: %v; want it cancelled", err)
	}
}

func (q *queue) releases(s driver.Session, token uint64) {
	q.t.Helper()
	if err := s.Release(q.t.Context(), "orders", token); err != nil {
		q.t.Fatal(err)
	}
}

// leaves has the heir leave, and checks that nobody would give it the election afterwards.
func (q *queue) leaves() {
	q.t.Helper()
	q.releases(q.heir, 0)
	q.isNone()
}

func (q *queue) isNone() {
	q.t.Helper()
	if _, err := q.heir.KeepAlive(q.t.Context()); err != nil {
		q.t.Fatal(err)
	}
	if keys := heirs(q.t, q.admin); len(keys) != 0 {
		q.t.Errorf("the session does not wait, and is the heir by %s", keys[0].Key)
	}
}

// An offer that was given up has its effect when it is made again, which then fails.
func TestLateOfferMakesTheNextFail(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	first, second := q.gate.hold(false, offerTo(q.leader)...), q.gate.hold(false, offerTo(q.leader)...)
	q.awaits()
	within(t, "the first offer", first.arrived)
	q.givesUp()
	q.awaits()
	within(t, "the second offer", second.arrived)
	first.open()
	within(t, "the first offer's effect", first.passed)
	second.open()
	within(t, "the second offer's answer", second.passed)
	time.Sleep(200 * time.Millisecond) // the session hears it; without that this tests an offer that is cancelled
	q.givesUp()
	q.leaves()
}

// An offer to a leader that has gone has its effect after another leads.
func TestLateOfferToAnEarlierLeader(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	next := session(t, q.store, "next", time.Minute)
	late := q.gate.hold(false, offerTo(q.leader)...)
	q.awaits()
	within(t, "the offer", late.arrived)
	q.releases(q.leader, q.held.Token)
	if err := <-q.awaited; err != nil {
		t.Fatal(err)
	}
	acquire(t, next, "orders", "")
	q.awaits()
	time.Sleep(500 * time.Millisecond) // it may offer itself to the next
	late.open()
	within(t, "the offer's effect", late.passed)
	q.givesUp()
	q.leaves()
}

// An offer has its effect after its session has left, and found the election vacant.
func TestLateOfferAfterLeaving(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	late := q.gate.hold(false, offerTo(q.leader)...)
	q.awaits()
	within(t, "the offer", late.arrived)
	q.givesUp()
	q.releases(q.leader, q.held.Token)
	q.leaves()
	late.open()
	within(t, "the offer's effect", late.passed)
	q.isNone()
	if grant, err := q.heir.KeepAlive(t.Context()); err != nil || grant.Holds != nil {
		t.Errorf("%+v, %v; want nothing told", grant, err)
	}
}

// The answer to a withdrawal comes after another offer.
func TestLateWithdrawal(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	late := q.gate.hold(true, withdrawFrom(q.leader)...)
	q.awaits()
	awaitHeir(t, q.admin, q.heir.ID())
	if _, err := q.admin.KV().Delete("orders", nil); err != nil {
		t.Fatal(err)
	}
	if err := <-q.awaited; err != nil {
		t.Fatal(err)
	}
	won := acquire(t, q.heir, "orders", "")
	within(t, "the withdrawal", late.arrived)
	q.releases(q.heir, won.Token)
	q.held = acquire(t, q.leader, "orders", "")
	q.awaits()
	awaitHeir(t, q.admin, q.heir.ID())
	late.open()
	within(t, "the withdrawal's answer", late.passed)
	time.Sleep(200 * time.Millisecond) // the session hears it
	q.givesUp()
	q.leaves()
}

// An administrator writes to the key of a leader, who resigns before a renewal tells of that: the session is not left with an election of which nobody knows.
func TestOverwrittenBeforeReleased(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	if _, err := q.admin.KV().Put(&api.KVPair{Key: "orders", Value: []byte("x"), Flags: api.LockFlagValue}, nil); err != nil {
		t.Fatal(err)
	}
	q.releases(q.leader, q.held.Token)
	grant, err := q.leader.KeepAlive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if token := grant.Holds["orders"]; token != 0 {
		q.releases(q.leader, token)
	}
	eventually(t, func() string {
		if r, err := q.store.Get(t.Context(), "orders"); err != nil || r.Held() {
			return fmt.Sprintf("%+v, %v; the renewal has told %+v", r, err, grant)
		}
		return ""
	})
}
