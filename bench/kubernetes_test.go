package bench_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/kubernetes"
)

const leaseNamespace = "default"

func leaseName(kind string) string { return kind + "-" + strings.ToLower(rand.Text()[:10]) }

// apiConfig returns how to connect to the API server of a store's URL, without the limit that client-go has of itself.
func apiConfig(b *testing.B, storeURL string) *rest.Config {
	b.Helper()
	u, err := url.Parse(storeURL)
	try(b, err)
	config, err := clientcmd.BuildConfigFromFlags("", u.Query().Get("kubeconfig"))
	try(b, err)
	config.QPS = -1
	return config
}

// newLeases returns a client with connections of its own.
func newLeases(b *testing.B, storeURL string) coordination.LeaseInterface {
	b.Helper()
	config := apiConfig(b, storeURL)
	config.UserAgent = leaseName("bench")           // else clients share connections
	config.TLSClientConfig.ServerName = "127.0.0.1" // the name that it checks anyway
	client, err := coordination.NewForConfig(config)
	try(b, err)
	return client.Leases(leaseNamespace)
}

// How long a handover takes on Kubernetes, from the call of Term.Resign to the start of the successor's work, compared with one write of a Lease and its watch event at another
// client; and with client-go's election, which releases and polls, in the same run.
func BenchmarkKubernetesHandover(b *testing.B) {
	klog.SetLogger(logr.Discard())
	ctx := limit(b)
	storeURL := testserver.KubernetesURL(b)
	floor := newLeaseFloor(ctx, b, storeURL)
	line := newLeaseLine(ctx, b, storeURL)
	var took, least, theirs []time.Duration
	for b.Loop() {
		took, least, theirs = nil, nil, nil
		for range handovers / 2 {
			time.Sleep(200 * time.Millisecond) // the last leader stands again, and begins to watch
			took = append(took, line.handOver(ctx, b))
			time.Sleep(200 * time.Millisecond) // as before a handover
			least = append(least, floor.once(ctx, b))
		}
		for range 10 {
			theirs = append(theirs, clientGoHandover(ctx, b, storeURL))
		}
	}
	b.ReportMetric(float64(median(took))/float64(median(least)), "times-floor(<=1.5)")
	b.ReportMetric(float64(median(theirs))/float64(median(least)), "client-go-times-floor")
	b.ReportMetric(float64(median(took).Microseconds()), "median-µs")
	b.ReportMetric(float64(median(least).Microseconds()), "floor-µs")
	b.ReportMetric(float64(median(theirs).Milliseconds()), "client-go-ms")
	b.ReportMetric(0, "ns/op") // of a whole loop: says nothing
}

// A leaseLine is three members with stores of their own that stand in one election.
type leaseLine struct {
	starts chan start
	leads  start
}

func newLeaseLine(ctx context.Context, b *testing.B, storeURL string) *leaseLine {
	b.Helper()
	l := &leaseLine{starts: make(chan start, processes)}
	election := leaseName("line")
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{}, processes)
	for i := range processes {
		store, err := kubernetes.Open(ctx, storeURL)
		try(b, err)
		b.Cleanup(func() { try(b, store.Close()) })
		m, err := tenure.Join(ctx, store, tenure.Config{ID: fmt.Sprint("member-", i), StablePeriod: 30 * time.Millisecond})
		try(b, err)
		b.Cleanup(func() {
			if err := m.Leave(context.Background()); err != nil {
				b.Error(err)
			}
		})
		go func() {
			defer func() { done <- struct{}{} }()
			_ = m.Lead(ctx, election, func(ctx context.Context, term *tenure.Term) error {
				l.starts <- start{at: time.Now(), store: i, term: term}
				<-ctx.Done()
				return nil
			})
		}()
	}
	b.Cleanup(func() {
		cancel()
		for range processes {
			<-done
		}
	})
	l.leads = <-l.starts
	time.Sleep(time.Second) // the others begin to watch
	return l
}

func (l *leaseLine) handOver(ctx context.Context, b *testing.B) time.Duration {
	b.Helper()
	began := time.Now()
	try(b, l.leads.term.Resign(ctx))
	select {
	case next := <-l.starts:
		if next.store == l.leads.store {
			b.Fatal("the successor is in the same process: this measures no notification")
		}
		l.leads = next
		return next.at.Sub(began)
	case <-ctx.Done():
		b.Fatal("no successor")
		return 0
	}
}

// A leaseFloor measures one write of a Lease and the event that tells another client of it.
type leaseFloor struct {
	leases coordination.LeaseInterface
	lease  *coordinationv1.Lease
	got    <-chan time.Time
}

func newLeaseFloor(ctx context.Context, b *testing.B, storeURL string) *leaseFloor {
	b.Helper()
	f := &leaseFloor{leases: newLeases(b, storeURL)}
	name, holder := leaseName("floor"), "a"
	var err error
	f.lease, err = f.leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}}, metav1.CreateOptions{})
	try(b, err)
	w, err := newLeases(b, storeURL).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: f.lease.ResourceVersion})
	try(b, err)
	b.Cleanup(w.Stop)
	got := make(chan time.Time, 1)
	f.got = got
	go func() {
		for range w.ResultChan() {
			got <- time.Now()
		}
	}()
	return f
}

func (f *leaseFloor) once(ctx context.Context, b *testing.B) time.Duration {
	b.Helper()
	holder := rand.Text()
	f.lease.Spec.HolderIdentity = &holder
	began := time.Now()
	var err error
	f.lease, err = f.leases.Update(ctx, f.lease, metav1.UpdateOptions{})
	try(b, err)
	select {
	case at := <-f.got:
		return at.Sub(began)
	case <-ctx.Done():
		b.Fatal("no event")
		return 0
	}
}

// clientGoHandover measures from the end of a leader's context to the start of its successor's work, with ReleaseOnCancel and the durations that client-go recommends.
func clientGoHandover(ctx context.Context, b *testing.B, storeURL string) time.Duration {
	b.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	name := leaseName("client-go")
	starts := make(chan time.Time, processes)
	run := func(identity string) (stop func()) {
		client, err := coordination.NewForConfig(apiConfig(b, storeURL))
		try(b, err)
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: name}, Client: client, LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
			},
			LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second, ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { starts <- time.Now() }, OnStoppedLeading: func() {}},
		})
		try(b, err)
		own, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { elector.Run(own); close(done) }()
		return func() { cancel(); <-done }
	}
	stop := run("a")
	<-starts
	others := []func(){run("b"), run("c")}
	time.Sleep(2*time.Second + time.Duration(time.Now().UnixNano()%int64(2*time.Second))) // the release meets their polls in any phase
	began := time.Now()
	stop()
	at := <-starts
	cancel()
	for _, other := range others {
		other()
	}
	return at.Sub(began)
}

// What elections with three members each cost while nothing happens, in requests that the API server counts: a leader renews, and a follower asks nothing.
func BenchmarkKubernetesIdle(b *testing.B) {
	ctx := limit(b)
	storeURL := testserver.KubernetesURL(b)
	const elections = 1000
	prefix := leaseName("idle")
	var leaders []*tenure.Member
	for i := range processes {
		store, err := kubernetes.Open(ctx, storeURL)
		try(b, err)
		b.Cleanup(func() { try(b, store.Close()) })
		m, err := tenure.Join(ctx, store, tenure.Config{ID: fmt.Sprint("member-", i), TTL: 2 * time.Minute})
		try(b, err)
		leaders = append(leaders, m)
		b.Cleanup(func() {
			if err := m.Leave(context.Background()); err != nil {
				b.Error(err)
			}
		})
	}
	for i := range elections {
		_, err := leaders[0].Campaign(ctx, fmt.Sprint(prefix, "-", i))
		try(b, err)
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, m := range leaders[1:] {
		for i := range elections {
			go func() { _, _ = m.Campaign(waiting, fmt.Sprint(prefix, "-", i)) }()
		}
	}
	count := newRequestCount(b, storeURL)
	// All watches have begun when two counts of new ones agree.
	for last := -1.0; ; {
		now := count.of(ctx, b, "WATCH") + count.of(ctx, b, "LIST") + count.of(ctx, b, "GET")
		if now == last {
			break
		}
		last = now
		time.Sleep(3 * time.Second) // for more of them to begin
	}
	var writes, others float64
	const span = 30 * time.Second
	for b.Loop() {
		before := count.all(ctx, b)
		time.Sleep(span) // what is measured: a time in which nothing happens
		after := count.all(ctx, b)
		writes, others = 0, 0
		for verb, n := range after {
			if verb == "PUT" {
				writes = n - before[verb]
			} else {
				others += n - before[verb]
			}
		}
	}
	b.ReportMetric(writes/elections, "renewals/election/TTL")
	b.ReportMetric(others/(2*elections), "requests/follower/TTL(=0)")
	b.ReportMetric(0, "ns/op") // of a whole loop: says nothing
}

// A requestCount reads the API server's own counters of requests for Leases.
type requestCount struct {
	client *http.Client
	url    string
}

func newRequestCount(b *testing.B, storeURL string) requestCount {
	b.Helper()
	config := apiConfig(b, storeURL)
	client, err := rest.HTTPClientFor(config)
	try(b, err)
	return requestCount{client, config.Host + "/metrics"}
}

func (c requestCount) of(ctx context.Context, b *testing.B, verb string) float64 {
	b.Helper()
	return c.all(ctx, b)[verb]
}

// all returns the requests so far by verb. A watch counts when it begins; those that run are no requests.
func (c requestCount) all(ctx context.Context, b *testing.B) map[string]float64 {
	b.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	try(b, err)
	response, err := c.client.Do(request)
	try(b, err)
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	try(b, err)
	counts := make(map[string]float64)
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "apiserver_request_total{") || !strings.Contains(line, `resource="leases"`) {
			continue
		}
		_, verb, _ := strings.Cut(line, `verb="`)
		verb, _, _ = strings.Cut(verb, `"`)
		var n float64
		try(b, json.Unmarshal([]byte(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):])), &n))
		counts[verb] += n
	}
	return counts
}
