package testserver

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

func etcdctl(t *testing.T, e *Etcd, args ...string) (string, error) {
	t.Helper()
	out, err := exec.Command(EtcdProgram(t, "etcdctl"), append([]string{"--endpoints=" + e.Endpoint(), "--command-timeout=2s"}, args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func TestEtcdKeepsDataAndPort(t *testing.T) {
	t.Parallel()
	e := StartEtcd(t)
	if out, err := etcdctl(t, e, "put", "k", "v"); err != nil {
		t.Fatal(err, out)
	}
	e.Stop()
	e.Start()
	e.Kill()
	if out, err := etcdctl(t, e, "get", "k"); err == nil {
		t.Fatalf("a killed server answered %s", out)
	}
	e.Start()
	e.Pause()
	if out, err := etcdctl(t, e, "get", "k"); err == nil {
		t.Fatalf("a paused server answered %s", out)
	}
	e.Resume()
	if out, err := etcdctl(t, e, "get", "k", "--print-value-only"); err != nil || out != "v" {
		t.Fatalf("got %s, %v; want v", out, err)
	}
}

func TestEtcdClusterOutlivesOneNode(t *testing.T) {
	t.Parallel()
	nodes := StartEtcdCluster(t, 3)
	if out, err := etcdctl(t, nodes[0], "put", "k", "v"); err != nil {
		t.Fatal(err, out)
	}
	nodes[0].Kill()
	// The two that are left may have to elect a leader first.
	waitFor(t, func() bool {
		out, err := etcdctl(t, nodes[1], "get", "k", "--print-value-only")
		return err == nil && out == "v"
	})
	nodes[0].Start()
	if out, err := etcdctl(t, nodes[0], "get", "k", "--print-value-only"); err != nil || out != "v" {
		t.Fatalf("got %s, %v; want v", out, err)
	}
	began := time.Now()
	nodes[0].Kill()
	nodes[1].Kill()
	if out, err := etcdctl(t, nodes[2], "get", "k"); err == nil {
		t.Fatalf("%v after a majority was lost: %s", time.Since(began), out)
	}
}
