package testserver

import (
	"testing"

	"github.com/gotenure/tenure/internal/servers"
)

// KubernetesURL returns the store URL of a running API server that all tests share, for its administrator. Its parameter kubeconfig is the path of a kubeconfig.
func KubernetesURL(t testing.TB) string {
	t.Helper()
	return getenv(t, "TENURE_TEST_KUBERNETES")
}

// A Kubernetes is an API server of one test's own, with an etcd, to crash and to stop. Its methods are called from the test's
// goroutine, and end the test when they fail.
type Kubernetes struct {
	t      testing.TB
	server *servers.Kubernetes
}

// StartKubernetes starts an API server that authorizes by RBAC, without controllers and nodes; it runs until the test ends. Without kube-apiserver and etcd on the
// machine the test is skipped.
func StartKubernetes(t testing.TB) *Kubernetes {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a Kubernetes API server: run it without -short")
	}
	if _, err := servers.KubernetesProgram(); err != nil {
		t.Skip(err)
	}
	if _, err := servers.EtcdPrograms(); err != nil {
		t.Skip(err)
	}
	s, err := servers.StartKubernetes(t.Context())
	if err != nil {
		t.Fatalf("start Kubernetes: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the API server's log:\n%s", s.Log())
		}
		if err := s.Close(); err != nil {
			t.Errorf("remove Kubernetes: %v", err)
		}
	})
	return &Kubernetes{t: t, server: s}
}

// URL returns the store URL of namespace default for the administrator.
func (k *Kubernetes) URL() string { return k.server.URL() }

// Config returns the path of a kubeconfig for the administrator.
func (k *Kubernetes) Config() string { return k.server.Config() }

// Certificate returns the path of the API server's certificate, with that of the authority that signed it.
func (k *Kubernetes) Certificate() string { return k.server.Certificate() }

// Addr returns the API server's host and port, which outlive a restart.
func (k *Kubernetes) Addr() string { return k.server.Addr() }

// Stop ends the API server as an operator would, and returns when it has ended.
func (k *Kubernetes) Stop() { k.server.Stop() }

// Kill ends the API server at once with SIGKILL.
func (k *Kubernetes) Kill() { k.server.Kill() }

// Start starts the API server again after Stop or Kill, with the objects that it had, and returns when it serves.
func (k *Kubernetes) Start() {
	k.t.Helper()
	if err := k.server.Start(k.t.Context()); err != nil {
		k.t.Fatalf("start the API server again: %v", err)
	}
}

// Pause stops the API server with SIGSTOP: connections stay open and nothing answers until Resume.
func (k *Kubernetes) Pause() { k.server.Pause() }

// Resume lets a paused API server go on.
func (k *Kubernetes) Resume() { k.server.Resume() }

// PauseEtcd stops the etcd behind the API server with SIGSTOP: the API server accepts requests and cannot answer.
func (k *Kubernetes) PauseEtcd() { k.server.Etcd().Pause() }

// ResumeEtcd lets a paused etcd go on.
func (k *Kubernetes) ResumeEtcd() { k.server.Etcd().Resume() }

// KillEtcd ends the etcd behind the API server at once with SIGKILL.
func (k *Kubernetes) KillEtcd() { k.server.Etcd().Kill() }

// StartEtcd starts the etcd again after KillEtcd, with the objects that it had.
func (k *Kubernetes) StartEtcd() {
	k.t.Helper()
	if err := k.server.Etcd().Start(k.t.Context()); err != nil {
		k.t.Fatalf("start etcd again: %v", err)
	}
}

// EtcdDataDir returns the directory with the data of the etcd behind the API server, which may be replaced while it does not run.
func (k *Kubernetes) EtcdDataDir() string { return k.server.Etcd().DataDir() }

// EtcdEndpoint returns the URL of the etcd behind the API server, as etcdctl wants it.
func (k *Kubernetes) EtcdEndpoint() string { return k.server.Etcd().Endpoint() }
