package cli

import (
	"context"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/zookeeper"
)

func init() {
	storeKinds["zookeeper"] = &storeKind{
		example: "zookeeper://HOST:2181,HOST:2181/CHROOT",
		remedy:  "check that a server answers: try zkCli.sh -server HOST:2181 ls /",
		open: func(ctx context.Context, raw string) (driver.Store, error) {
			return zookeeper.Open(ctx, raw)
		},
		// Nodes are made when they are missing. Opening finds out whether they may be read.
		create: func(ctx context.Context, raw string) error {
			store, err := zookeeper.Open(ctx, raw)
			if err != nil {
				return err
			}
			return store.Close()
		},
		schema: func(string) (string, error) {
			return "# Nothing has to be prepared: nodes are made when they are missing.\n", nil
		},
	}
}
