package etcd_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/internal/testserver"
)

// A fleet is members that stand in one election, and what they saw. Each has a store of its own.
type fleet struct {
	t  *testing.T
	mu sync.Mutex

	live   map[*tenure.Term]bool
	tokens []uint64 // of the terms, as they began
}

// fleetTTL is short, so that outages can be longer, and long enough for a busy machine.
const fleetTTL = 5 * time.Second

func startFleet(t *testing.T, ttl time.Duration, urls ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, live: make(map[*tenure.Term]bool)}
	for i, url := range urls {
		m, err := tenure.Join(deadline(t), openStore(t, url), tenure.Config{ID: fmt.Sprint("member ", i), TTL: ttl, StablePeriod: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = m.Lead(ctx, "e", f.work)
		}()
		t.Cleanup(func() {
			cancel()
			leaving, stop := context.WithTimeout(context.Background(), patience)
			defer stop()
			_ = m.Leave(leaving) // the servers may be gone
			<-done
		})
	}
	return f
}

// work looks, as often as it goes, whether another term is trusted beside its own.
func (f *fleet) work(ctx context.Context, term *tenure.Term) error {
	f.mu.Lock()
	if n := len(f.tokens); n > 0 && term.Token() <= f.tokens[n-1] {
		f.t.Errorf("token %d after %d", term.Token(), f.tokens[n-1])
	}
	f.tokens = append(f.tokens, term.Token())
	f.live[term] = true
	f.mu.Unlock()
	for ctx.Err() == nil {
		f.mu.Lock()
		var trusted []string
		for other := range f.live {
			if other.Check() == nil {
				trusted = append(trusted, other.Member())
			}
		}
		f.mu.Unlock()
		if len(trusted) > 1 {
			f.t.Errorf("%s lead at the same time", strings.Join(trusted, " and "))
		}
		time.Sleep(5 * time.Millisecond) // the unit of work
	}
	f.mu.Lock()
	delete(f.live, term)
	f.mu.Unlock()
	return ctx.Err()
}

// leads waits until somebody leads, and returns the token.
func (f *fleet) leads() (token uint64) {
	f.t.Helper()
	eventually(f.t, func() string {
		f.mu.Lock()
		defer f.mu.Unlock()
		for term := range f.live {
			if term.Check() == nil {
				token = term.Token()
				return ""
			}
		}
		return "nobody leads"
	})
	return token
}

// An outage shorter than what remains of a lease costs nothing; after a longer one somebody leads again by itself, under a greater token, and never two at
// once (A1, A7, A8).
func TestOutages(t *testing.T) {
	t.Parallel()
	outages := []struct {
		name      string
		cut, mend func(*testserver.Etcd, *testserver.Proxy)
	}{
		{"stopped with SIGSTOP", func(e *testserver.Etcd, _ *testserver.Proxy) { e.Pause() }, func(e *testserver.Etcd, _ *testserver.Proxy) { e.Resume() }},
		{"killed", func(e *testserver.Etcd, _ *testserver.Proxy) { e.Kill() }, func(e *testserver.Etcd, _ *testserver.Proxy) { e.Start() }},
		{"requests are swallowed", func(_ *testserver.Etcd, p *testserver.Proxy) { p.Blackhole(testserver.ToServer) }, func(_ *testserver.Etcd, p *testserver.Proxy) { p.Heal() }},
		{"answers are swallowed", func(_ *testserver.Etcd, p *testserver.Proxy) { p.Blackhole(testserver.ToClient) }, func(_ *testserver.Etcd, p *testserver.Proxy) { p.Heal() }},
		{"connections are refused", func(_ *testserver.Etcd, p *testserver.Proxy) { p.Refuse(); p.Drop() }, func(_ *testserver.Etcd, p *testserver.Proxy) { p.Heal() }},
	}
	for _, outage := range outages {
		for _, long := range []bool{false, true} {
			ttl, lasts := fleetTTL, 2*fleetTTL
			if !long {
				ttl, lasts = 4*fleetTTL, fleetTTL/5 // what remains is enough for a server to start on a busy machine
			}
			t.Run(fmt.Sprintf("%s for %v of a TTL of %v", outage.name, lasts, ttl), func(t *testing.T) {
				t.Parallel()
				server := testserver.StartEtcd(t)
				proxy := testserver.StartProxy(t, server.Addr())
				f := startFleet(t, ttl, proxy.URL(server.URL()), proxy.URL(server.URL()))
				before := f.leads()
				outage.cut(server, proxy)
				time.Sleep(lasts) // how long the outage lasts is the point
				outage.mend(server, proxy)
				began := time.Now()
				if !long {
					time.Sleep(ttl) // the loss would show within a TTL
				}
				after := f.leads()
				switch {
				case !long && after != before:
					t.Errorf("token %d became %d", before, after)
				case long && after == before:
					t.Errorf("token %d is still trusted, %v after the last renewal", after, lasts)
				}
				t.Logf("led again after %v, token %d after %d", time.Since(began), after, before)
			})
		}
	}
}

// One answer comes to the members by way of a proxy and the other does not: only the leader is cut off. It stops before the other leads (A1).
func TestLeaderCutOff(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	proxy := testserver.StartProxy(t, server.Addr())
	f := startFleet(t, fleetTTL, proxy.URL(server.URL()))
	before := f.leads()
	other := openSession(t, openStore(t, server.URL()), "other", time.Minute)
	won := campaign(t, other, "e")
	proxy.Blackhole(testserver.ToServer)
	o := <-won
	f.mu.Lock()
	for term := range f.live {
		if term.Check() == nil {
			t.Error("the leader that is cut off is trusted while another leads")
		}
	}
	f.mu.Unlock()
	if o.err != nil || o.record.Token <= before {
		t.Fatalf("token %d after %d, %v", o.record.Token, before, o.err)
	}
	proxy.Heal()
}

// A cluster of three loses a member, its leader, and its majority. The members know all servers.
func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := testserver.StartEtcdCluster(t, 3)
	url := fmt.Sprintf("etcd://%s,%s,%s", nodes[0].Addr(), nodes[1].Addr(), nodes[2].Addr())
	f := startFleet(t, fleetTTL, url, url, url)
	f.leads()
	operator := connect(t, url)
	for _, leader := range []bool{false, true} {
		i := leaderOf(t, operator, nodes)
		if !leader {
			i = (i + 1) % 3
		}
		nodes[i].Kill()
		time.Sleep(fleetTTL) // what the loss costs shows within a TTL
		after := f.leads()
		nodes[i].Start()
		t.Logf("killed a server (leader: %v): token %d", leader, after)

		nodes[(i+1)%3].Pause()
		time.Sleep(fleetTTL) // likewise
		f.leads()
		nodes[(i+1)%3].Resume()
	}
	before := f.leads()
	nodes[0].Kill()
	nodes[1].Kill()
	time.Sleep(2 * fleetTTL) // nobody may be trusted without a majority for longer than a TTL
	f.mu.Lock()
	for term := range f.live {
		if term.Check() == nil {
			t.Error("somebody is trusted although a majority is down")
		}
	}
	f.mu.Unlock()
	started := make(chan struct{})
	go func() { defer close(started); nodes[0].Start() }()
	<-started
	if after := f.leads(); after <= before {
		t.Errorf("token %d after %d", after, before)
	}
}
