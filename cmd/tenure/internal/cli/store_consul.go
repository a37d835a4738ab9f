package cli

import (
	"context"
	"fmt"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/consul"
)

func init() {
	storeKinds["consul"] = &storeKind{
		example: "consul://HOST:8500",
		remedy:  "check that the agent runs there and its servers have a leader: try consul operator raft list-peers",
		open:    func(_ context.Context, raw string) (driver.Store, error) { return consul.Open(raw) },
		create: func(_ context.Context, raw string) error {
			s, err := consul.Open(raw)
			if err != nil {
				return err
			}
			return s.Close()
		},
		schema: func(string) (string, error) {
			return "", fmt.Errorf("%w: Consul has no schema: nothing needs to be created", driver.ErrInvalid)
		},
	}
}
