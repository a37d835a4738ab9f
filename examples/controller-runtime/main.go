// Command controller-runtime is a manager of controller-runtime that elects its leader through a PostgreSQL database rather than the API server, so that the election costs the
// cluster nothing and goes on while the API server is away.
//
//	go run . -store postgres://user@host/database -election my-controller
//
// It reads the Deployments of the cluster that $KUBECONFIG or the pod's service account says; only the leader does.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/kubernetes/resourcelock"
	"github.com/gotenure/tenure/store/postgres"
)

func main() {
	url := flag.String("store", "", "URL of the PostgreSQL database to elect through")
	election := flag.String("election", "my-controller", "name of the election")
	flag.Parse()
	log.SetLogger(zap.New())
	if err := run(ctrl.SetupSignalHandler(), *url, *election); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, url, election string) error {
	store, err := postgres.Open(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // the process ends, and has released
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	host, err := os.Hostname() // a pod's is its name
	if err != nil {
		return err
	}
	mgr, err := newManager(config, store, election, host)
	if err != nil {
		return err
	}
	if err := ctrl.NewControllerManagedBy(mgr).For(&appsv1.Deployment{}).Complete(reconcile.Func(reconcileDeployment)); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// newManager returns a manager that elects through the store. Its durations are controller-runtime's defaults.
func newManager(config *rest.Config, store driver.Store, election, identity string) (ctrl.Manager, error) {
	lease, renew, retry := resourcelock.LeaseDuration, resourcelock.RenewDeadline, resourcelock.RetryPeriod
	lock, err := resourcelock.New(store, election, identity, lease)
	if err != nil {
		return nil, err
	}
	return ctrl.NewManager(config, ctrl.Options{
		LeaderElection:                      true,
		LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel:       true, // run ends the process when Start returns
		LeaseDuration:                       &lease,
		RenewDeadline:                       &renew,
		RetryPeriod:                         &retry,
		Metrics:                             server.Options{BindAddress: "0"},
	})
}

func reconcileDeployment(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	log.FromContext(ctx).Info("only the leader sees", "deployment", request.String())
	return reconcile.Result{}, nil
}
