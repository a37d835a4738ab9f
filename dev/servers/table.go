package main

import (
	"context"
	"fmt"
	"os/exec"
	"time"

	"github.com/gotenure/tenure/internal/servers"
)

// A server is what tests need to be installed, and mostly to run. A new one is a new line of the table.
type server struct {
	name     string
	packages []string                        // of Debian, to install unless missing returns nil
	build    func(ctx context.Context) error // from source; nil: it is in the packages
	missing  func() error
	start    func(ctx context.Context, r *running) (stop func() error, err error) // nil: it only has to be installed
}

// running is what the servers started so far offer those that follow and CMD.
type running struct {
	postgres *servers.Postgres
	env      []string
}

// table lists the servers in the order of their starts: a later one may stand in front of an earlier one.
var table = []server{
	{
		name:     "C compiler", // for the race detector
		packages: []string{"gcc", "libc6-dev"},
		missing:  func() error { _, err := exec.LookPath("gcc"); return err },
	},
	{
		name:     "PostgreSQL",
		packages: []string{"postgresql"},
		missing:  func() error { _, err := servers.PostgresBin(); return err },
		start:    startPostgres,
	},
	{
		name:     "PgBouncer",
		packages: []string{"pgbouncer"},
		missing:  func() error { _, err := servers.PgBouncerProgram(); return err },
		start:    startPgBouncer,
	},
	etcd,
	kubernetes,
	consul,
	zookeeper,
	maven,
}

func startPostgres(ctx context.Context, r *running) (func() error, error) {
	// Commits are as durable as PostgreSQL makes them by default: benchmarks measure them. Many test packages share the server.
	s, err := servers.StartPostgres(ctx, "max_connections=400")
	if err != nil {
		return nil, err
	}
	r.postgres = s
	r.env = append(r.env, "TENURE_TEST_POSTGRES="+s.URL(), "TENURE_TEST_POSTGRES_BIN="+s.Bin())
	return s.Close, nil
}

func startPgBouncer(ctx context.Context, r *running) (func() error, error) {
	b, err := servers.StartPgBouncer(ctx, r.postgres)
	if err != nil {
		return nil, err
	}
	r.env = append(r.env, "TENURE_TEST_PGBOUNCER="+b.URL())
	return b.Close, nil
}

// startAll starts the servers of the table. The caller calls stop also after an error.
func startAll(ctx context.Context) (env []string, stop func(), err error) {
	began := time.Now()
	var stops []func() error
	stop = func() {
		for i := len(stops) - 1; i >= 0; i-- {
			if err := stops[i](); err != nil {
				warn("stop: %v", err)
			}
		}
	}
	var r running
	for _, s := range table {
		if s.start == nil {
			continue
		}
		stopOne, err := s.start(ctx, &r)
		if err != nil {
			return nil, stop, fmt.Errorf("start %s: %w", s.name, err)
		}
		stops = append(stops, stopOne)
	}
	warn("ready after %v", time.Since(began).Round(time.Millisecond))
	return r.env, stop, nil
}
