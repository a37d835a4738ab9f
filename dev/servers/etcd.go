package main

import (
	"context"

	"github.com/gotenure/tenure/internal/servers"
)

var etcd = server{
	name:    "etcd",
	build:   servers.BuildEtcd,
	missing: func() error { _, err := servers.EtcdPrograms(); return err },
	start:   startEtcd,
}

func startEtcd(ctx context.Context, r *running) (func() error, error) {
	// Commits are as durable as etcd makes them by default: benchmarks measure them.
	s, err := servers.StartEtcd(ctx)
	if err != nil {
		return nil, err
	}
	r.env = append(r.env, "TENURE_TEST_ETCD=etcd://"+s.Addr(), "TENURE_TEST_ETCD_METRICS="+s.MetricsURL())
	return s.Close, nil
}
