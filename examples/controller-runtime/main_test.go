package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/postgres"
)

const patience = 60 * time.Second

// Two managers elect through PostgreSQL: one leads, and the other when the first has ended.
func TestManagersElectThroughPostgreSQL(t *testing.T) {
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	store, err := postgres.Open(t.Context(), testserver.PostgresURL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	u, err := url.Parse(testserver.KubernetesURL(t))
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", u.Query().Get("kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	election := fmt.Sprint("controllers-", time.Now().UnixNano())
	start := func(name string) (mgr ctrl.Manager, stop func()) {
		mgr, err := newManager(config, store, election, name)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- mgr.Start(ctx) }()
		return mgr, func() {
			cancel()
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	elected := func(mgr ctrl.Manager, name string) tenure.Leadership {
		select {
		case <-mgr.Elected():
		case <-time.After(patience):
			t.Fatalf("%s was not elected", name)
		}
		l, err := tenure.Leader(t.Context(), store, election)
		if err != nil || l.Leader != name {
			t.Fatalf("the store says that %q leads, %v; want %s", l.Leader, err, name)
		}
		return l
	}
	a, stopA := start("a")
	first := elected(a, "a")
	b, stopB := start("b")
	select {
	case <-b.Elected():
		t.Fatal("both lead")
	case <-time.After(5 * time.Second): // b polls a few times
	}
	stopA()
	if second := elected(b, "b"); second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	stopB()
}
