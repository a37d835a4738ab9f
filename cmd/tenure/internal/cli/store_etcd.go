package cli

import (
	"context"
	"fmt"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/etcd"
)

func init() {
	storeKinds["etcd"] = &storeKind{
		example: "etcd://HOST:2379",
		remedy:  "check that the servers are running and reachable there: try etcdctl endpoint health",
		open: func(ctx context.Context, raw string) (driver.Store, error) {
			return etcd.Open(ctx, raw)
		},
		create: func(ctx context.Context, raw string) error {
			s, err := etcd.Open(ctx, raw)
			if err != nil {
				return err
			}
			return s.Close()
		},
		schema: func(string) (string, error) {
			return "", fmt.Errorf("%w: etcd has no schema: nothing needs to be created", driver.ErrInvalid)
		},
	}
}
