package testserver

import (
	"testing"

	"github.com/gotenure/tenure/internal/servers"
)

// EtcdURL returns the store URL of a running etcd that all tests share.
func EtcdURL(t testing.TB) string {
	t.Helper()
	return getenv(t, "TENURE_TEST_ETCD")
}

// EtcdProgram returns the path of etcd, etcdctl or etcdutl. Where they are not built the test is skipped.
func EtcdProgram(t testing.TB, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs an etcd: run it without -short")
	}
	programs, err := servers.EtcdPrograms()
	if err != nil {
		t.Skip(err)
	}
	return programs[name]
}

// An Etcd is an etcd server of one test's own, a single node or a node of a cluster, to crash and to stop. Its methods are called from the
// test's goroutine, and end the test when they fail.
type Etcd struct {
	t      testing.TB
	server *servers.Etcd
}

// StartEtcd starts a single node that runs until the test ends. Where etcd is not built the test is skipped. A flag is as on etcd's command
// line, with = before its value; --cert-file makes it serve TLS. The server does not wait for the disk, so it keeps what was
// committed when it is killed, but not when the machine is.
func StartEtcd(t testing.TB, flags ...string) *Etcd {
	t.Helper()
	return StartEtcdCluster(t, 1, flags...)[0]
}

// StartEtcdCluster starts a cluster of n nodes; see StartEtcd.
func StartEtcdCluster(t testing.TB, n int, flags ...string) []*Etcd {
	t.Helper()
	EtcdProgram(t, "etcd")
	nodes, err := servers.StartEtcdCluster(t.Context(), n, append([]string{"--unsafe-no-fsync"}, flags...)...)
	if err != nil {
		t.Fatalf("start etcd: %v", err)
	}
	var all []*Etcd
	for _, s := range nodes {
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("the end of the log of etcd at %s:\n%s", s.Addr(), s.Log())
			}
			if err := s.Close(); err != nil {
				t.Errorf("remove etcd: %v", err)
			}
		})
		all = append(all, &Etcd{t: t, server: s})
	}
	return all
}

// URL returns the store URL of this server alone.
func (e *Etcd) URL() string { return "etcd://" + e.Addr() }

// Addr returns the server's host and port for clients, which outlive a restart.
func (e *Etcd) Addr() string { return e.server.Addr() }

// Endpoint returns the server's URL for clients as etcdctl wants it.
func (e *Etcd) Endpoint() string { return e.server.Endpoint() }

// MetricsURL returns the URL of the server's metrics.
func (e *Etcd) MetricsURL() string { return e.server.MetricsURL() }

// Stop ends the server as an operator would, and returns when it has ended.
func (e *Etcd) Stop() { e.server.Stop() }

// Kill ends the server at once with SIGKILL.
func (e *Etcd) Kill() { e.server.Kill() }

// Start starts the server again after Stop or Kill, with the data that it had, and returns when it serves.
func (e *Etcd) Start() {
	e.t.Helper()
	if err := e.server.Start(e.t.Context()); err != nil {
		e.t.Fatalf("start etcd again: %v", err)
	}
}

// Pause stops the server with SIGSTOP: connections stay open and nothing answers until Resume.
func (e *Etcd) Pause() { e.server.Pause() }

// Resume lets a paused server go on.
func (e *Etcd) Resume() { e.server.Resume() }
