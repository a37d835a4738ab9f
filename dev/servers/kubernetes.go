package main

import (
	"context"

	"github.com/gotenure/tenure/internal/servers"
)

var kubernetes = server{
	name:    "kube-apiserver",
	build:   servers.BuildKubernetes,
	missing: func() error { _, err := servers.KubernetesProgram(); return err },
	start:   startKubernetes,
}

func startKubernetes(ctx context.Context, r *running) (func() error, error) {
	// It has an etcd of its own, as durable as by default.
	k, err := servers.StartKubernetes(ctx)
	if err != nil {
		return nil, err
	}
	r.env = append(r.env, "TENURE_TEST_KUBERNETES="+k.URL())
	return k.Close, nil
}
