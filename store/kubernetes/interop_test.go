package kubernetes_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/gotenure/tenure/internal/testserver"
)

func init() { klog.SetLogger(logr.Discard()) } // client-go's elections log to it

// The lease of all rivals here. client-go's elector follows by polls every retryPeriod, or a little more.
const (
	leaseDuration = 6 * time.Second
	renewDeadline = 4 * time.Second
	retryPeriod   = 500 * time.Millisecond
)

type office = testserver.Office

var newOffice = testserver.NewOffice

// A replica is one process of a fleet. stop ends it in good order, and returns when it has ended.
type replica struct {
	name string
	stop func()
}

// startClientGo starts a replica that elects with client-go. crash makes its end one without a release.
func startClientGo(t testing.TB, a *api, o *office, election, name string, crash bool) replica {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", a.config)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	client, err := coordination.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: election}, Client: client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: name},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: !crash,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				if ctx.Err() == nil {
					o.Enter(name, 0)
				}
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			elector.Run(ctx)
			o.Leave(name)
		}
	}()
	stop := sync.OnceFunc(func() {
		o.Leave(name) // its work ends before it releases, as work that heeds its context would
		cancel()
		<-done
	})
	t.Cleanup(stop)
	return replica{name, stop}
}

// startTenure starts a replica that elects with this library.
func startTenure(t testing.TB, url string, o *office, election, name string) replica {
	t.Helper()
	return startMember(t, url, o, election, name, leaseDuration)
}

// newFleet returns what the replicas of a test need.
func newFleet(t *testing.T) (url string, a *api, o *office) {
	t.Helper()
	url = newNamespace(t, testserver.KubernetesURL(t))
	return url, connect(t, url), newOffice(t)
}

func TestClientGoWaitsForTenure(t *testing.T) {
	t.Parallel()
	url, a, o := newFleet(t)
	ours := startTenure(t, url, o, "orders", "tenure-1")
	o.AwaitLeader("tenure")
	startClientGo(t, a, o, "orders", "client-go-1", false)
	// Twice its lease has to pass: an elector that did not see the renewals would take over after one.
	time.Sleep(2 * leaseDuration)
	if who := o.Leader(); who != "tenure-1" {
		t.Fatalf("the leader is %q; want tenure-1", who)
	}
	ours.stop()
	o.AwaitLeader("client-go")
	if _, longest := o.Gaps(); longest > leaseDuration {
		t.Errorf("nobody led for %v after a resignation", longest)
	}
}

func TestTenureWaitsForClientGo(t *testing.T) {
	t.Parallel()
	url, a, o := newFleet(t)
	theirs := startClientGo(t, a, o, "orders", "client-go-1", false)
	o.AwaitLeader("client-go")
	record, err := open(t, url).Get(t.Context(), "orders")
	if err != nil || record.Leader != "client-go-1" || record.Token != 0 {
		t.Fatalf("while client-go leads the record is %+v, %v", record, err)
	}
	startTenure(t, url, o, "orders", "tenure-1")
	// Twice the lease has to pass: a member that did not see the renewals would take over after one.
	time.Sleep(2 * leaseDuration)
	if who := o.Leader(); who != "client-go-1" {
		t.Fatalf("the leader is %q; want client-go-1", who)
	}
	theirs.stop()
	o.AwaitLeader("tenure")
	if _, longest := o.Gaps(); longest > leaseDuration/2 {
		t.Errorf("nobody led for %v after a release, which the watch tells at once", longest)
	}
}

func TestTenureTakesOverFromDeadClientGo(t *testing.T) {
	t.Parallel()
	url, a, o := newFleet(t)
	theirs := startClientGo(t, a, o, "orders", "client-go-1", true)
	o.AwaitLeader("client-go")
	startTenure(t, url, o, "orders", "tenure-1")
	time.Sleep(time.Second) // both are under way
	theirs.stop()
	o.AwaitLeader("tenure")
	// It may have renewed for the last time one retryPeriod before it died, and a little more on a busy machine.
	_, longest := o.Gaps()
	if longest < leaseDuration-2*retryPeriod-time.Second {
		t.Errorf("taken over %v after the leader had died; its lease of %v cannot have ended", longest, leaseDuration)
	}
	if longest > leaseDuration+patience/6 {
		t.Errorf("nobody led for %v", longest)
	}
}

func TestClientGoTakesOverFromDeadTenure(t *testing.T) {
	t.Parallel()
	url, a, o := newFleet(t)
	store := open(t, url)
	session, err := store.Open(t.Context(), "tenure-1", leaseDuration)
	if err != nil {
		t.Fatal(err)
	}
	won := acquire(t, session, "orders")
	startClientGo(t, a, o, "orders", "client-go-1", false)
	for range 5 {
		time.Sleep(leaseDuration / 3) // the interval between renewals
		if _, err := session.KeepAlive(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if who := o.Leader(); who != "" {
		t.Fatalf("%s leads while the session is renewed", who)
	}
	sent := time.Now()
	if _, err := session.KeepAlive(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.AwaitLeader("client-go")
	if took := time.Since(sent); took < leaseDuration {
		t.Errorf("taken over %v after the last renewal of a lease of %v", took, leaseDuration)
	}
	// What the dead session does late changes nothing.
	if _, err := session.KeepAlive(t.Context()); err == nil {
		t.Error("a renewal after the takeover succeeded")
	}
	if err := session.Release(t.Context(), "orders", won.Token); err != nil {
		t.Errorf("Release: %v", err)
	}
	if record, err := store.Get(t.Context(), "orders"); err != nil || record.Leader != "client-go-1" || record.Token != 0 || len(record.Value) > 0 {
		t.Errorf("the record is %+v, %v; want client-go-1 without a token", record, err)
	}
}

// A session that renews more often than once a second shows client-go every renewal: it compares whole seconds.
func TestEachRenewalIsVisibleToClientGo(t *testing.T) {
	t.Parallel()
	url, a, _ := newFleet(t)
	session, err := open(t, url).Open(t.Context(), "tenure-1", leaseDuration)
	if err != nil {
		t.Fatal(err)
	}
	acquire(t, session, "orders")
	last := ""
	for range 10 {
		if _, err := session.KeepAlive(t.Context()); err != nil {
			t.Fatal(err)
		}
		spec := a.do(t, http.MethodGet, a.lease("orders"), nil)["spec"].(map[string]any)
		at, err := time.Parse(time.RFC3339Nano, spec["renewTime"].(string))
		if err != nil {
			t.Fatal(err)
		}
		if second := at.Format(time.RFC3339); second == last {
			t.Fatalf("two renewals within the second %s", second)
		} else {
			last = second
		}
	}
}

// A fleet moves over one replica at a time, and back.
func TestRollingMigration(t *testing.T) {
	t.Parallel()
	url, a, o := newFleet(t)
	var fleet []replica
	for i := range 3 {
		fleet = append(fleet, startClientGo(t, a, o, "orders", fmt.Sprint("client-go-", i), false))
	}
	o.AwaitLeader("client-go")
	settle := func() {
		t.Helper()
		eventually(t, func() string {
			if o.Leader() == "" {
				return "nobody leads"
			}
			return ""
		})
		// A rollout waits between two replicas; in that time rivals poll, and see renewals.
		time.Sleep(leaseDuration / 2)
	}
	replace := func(i int, start func(name string) replica, name string) {
		t.Helper()
		fleet[i].stop()
		fleet[i] = start(name)
		settle()
	}
	for i := range 3 {
		replace(i, func(name string) replica { return startTenure(t, url, o, "orders", name) }, fmt.Sprint("tenure-", i))
	}
	o.AwaitLeader("tenure")
	token := func() uint64 {
		r, err := open(t, url).Get(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		return r.Token
	}
	first := token()
	for i := range 3 {
		replace(i, func(name string) replica { return startClientGo(t, a, o, "orders", name, false) }, fmt.Sprint("client-go-", i+3))
	}
	o.AwaitLeader("client-go")
	fleet[0].stop()
	fleet[0] = startTenure(t, url, o, "orders", "tenure-3")
	fleet[1].stop()
	fleet[2].stop()
	o.AwaitLeader("tenure")
	if second := token(); second <= first {
		t.Errorf("token %d after %d, with terms of client-go between", second, first)
	}
	gaps, longest := o.Gaps()
	t.Logf("handovers: %s", strings.Join(gaps, ", "))
	// client-go releases nothing when it is stopped within a renewal whose answer it then does not await: the lease runs out, counted from that renewal.
	if longest > leaseDuration+time.Second {
		t.Errorf("nobody led for %v, longer than a lease of %v", longest, leaseDuration)
	}
}
