package cli

import (
	"context"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/kubernetes"
)

func init() {
	storeKinds["kubernetes"] = &storeKind{
		example: "kubernetes://NAMESPACE",
		remedy:  "check that the API server answers: try kubectl get leases with the same kubeconfig and namespace",
		open: func(ctx context.Context, raw string) (driver.Store, error) {
			return kubernetes.OpenWith(ctx, raw, warnings())
		},
		// Leases are made when they are missing. What may be missing are permissions, which opening finds out.
		create: func(ctx context.Context, raw string) error {
			store, err := kubernetes.Open(ctx, raw)
			if err != nil {
				return err
			}
			return store.Close()
		},
		schema: func(string) (string, error) { return kubernetes.Manifest(), nil },
	}
}
