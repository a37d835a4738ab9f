package main

import (
	"context"

	"github.com/gotenure/tenure/internal/servers"
)

var zookeeper = server{
	name:     "ZooKeeper",
	packages: []string{"zookeeper"},
	missing:  servers.ZooKeeperMissing,
	start:    startZooKeeper,
}

func startZooKeeper(ctx context.Context, r *running) (func() error, error) {
	// Commits are as durable as ZooKeeper makes them by default: benchmarks measure them.
	z, err := servers.StartZooKeeper(ctx)
	if err != nil {
		return nil, err
	}
	r.env = append(r.env, "TENURE_TEST_ZOOKEEPER=zookeeper://"+z.Addr())
	return z.Close, nil
}
