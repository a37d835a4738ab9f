package main

import (
	"context"

	"github.com/gotenure/tenure/internal/servers"
)

var consul = server{
	name:    "Consul",
	build:   servers.BuildConsul,
	missing: func() error { _, err := servers.ConsulProgram(); return err },
	start:   startConsul,
}

func startConsul(ctx context.Context, r *running) (func() error, error) {
	s, err := servers.StartConsul(ctx)
	if err != nil {
		return nil, err
	}
	r.env = append(r.env, "TENURE_TEST_CONSUL=consul://"+s.Addr()+"?min-ttl=1s")
	return s.Close, nil
}
