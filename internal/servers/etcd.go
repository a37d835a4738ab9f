package servers

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

//go:embed etcd.mod.txt
var etcdMod string

//go:embed etcd.sum.txt
var etcdSum string

var etcdSource = source{
	name: "etcd", version: "3.7.3", mod: etcdMod, sum: etcdSum,
	programs: map[string]string{
		"etcd":    "go.etcd.io/etcd/server/v3",
		"etcdctl": "go.etcd.io/etcd/etcdctl/v3",
		"etcdutl": "go.etcd.io/etcd/etcdutl/v3",
	},
}

// EtcdPrograms returns the path of etcd's programs by name: etcd, etcdctl and etcdutl. TENURE_TEST_ETCD_BIN may point to a directory that has
// them in another version.
func EtcdPrograms() (map[string]string, error) {
	paths := make(map[string]string)
	for name := range etcdSource.programs {
		if dir := os.Getenv("TENURE_TEST_ETCD_BIN"); dir != "" {
			paths[name] = filepath.Join(dir, name)
			if _, err := os.Stat(paths[name]); err != nil {
				return nil, fmt.Errorf("TENURE_TEST_ETCD_BIN %q has no %s: point it to a directory with etcd's programs: %w", dir, name, err)
			}
			continue
		}
		path, err := etcdSource.program(name)
		if err != nil {
			return nil, err
		}
		paths[name] = path
	}
	return paths, nil
}

// BuildEtcd builds etcd's programs unless they are there.
func BuildEtcd(ctx context.Context) error {
	if os.Getenv("TENURE_TEST_ETCD_BIN") != "" {
		return nil
	}
	return etcdSource.build(ctx)
}

// An Etcd is one etcd server: a cluster of its own, or a node of one. Its methods are not for concurrent use.
type Etcd struct {
	program, dir, name    string
	client, peer, metrics int
	scheme                string // of its client URL
	cluster               string // all nodes with their peer URLs
	flags                 []string
	running               *process
}

// StartEtcd starts a single node. A flag is as on etcd's command line, with = before its value; --cert-file makes it serve TLS. The
// server runs until Close; ctx bounds the start only.
func StartEtcd(ctx context.Context, flags ...string) (*Etcd, error) {
	nodes, err := StartEtcdCluster(ctx, 1, flags...)
	if err != nil {
		return nil, err
	}
	return nodes[0], nil
}

// StartEtcdCluster starts a cluster of n nodes; see StartEtcd.
func StartEtcdCluster(ctx context.Context, n int, flags ...string) ([]*Etcd, error) {
	if !supported {
		return nil, ErrUnsupported
	}
	programs, err := EtcdPrograms()
	if err != nil {
		return nil, err
	}
	// Another process may take a port between the look and the start.
	for try := 0; ; try++ {
		nodes, err := startEtcdCluster(ctx, n, programs["etcd"], flags)
		if err == nil {
			return nodes, nil
		}
		for _, e := range nodes {
			err = errors.Join(err, e.Close())
		}
		if try == 2 || ctx.Err() != nil {
			return nil, err
		}
	}
}

func startEtcdCluster(ctx context.Context, n int, program string, flags []string) (nodes []*Etcd, err error) {
	var peers []string
	for i := range n {
		dir, err := newDir("etcd")
		if err != nil {
			return nodes, err
		}
		e := &Etcd{program: program, dir: dir, name: fmt.Sprint("n", i+1), scheme: "http", flags: flags}
		for _, flag := range flags {
			if strings.HasPrefix(flag, "--cert-file=") {
				e.scheme = "https"
			}
		}
		nodes = append(nodes, e)
		for _, port := range []*int{&e.client, &e.peer, &e.metrics} {
			if *port, err = freePort(); err != nil {
				return nodes, err
			}
		}
		peers = append(peers, e.name+"=http://"+loopback(e.peer))
	}
	for _, e := range nodes {
		e.cluster = strings.Join(peers, ",")
		if err := e.launch(); err != nil {
			return nodes, err
		}
	}
	for _, e := range nodes {
		if err := e.ready(ctx); err != nil {
			return nodes, err
		}
	}
	return nodes, nil
}

// Addr returns the server's host and port for clients.
func (e *Etcd) Addr() string { return loopback(e.client) }

// Endpoint returns the server's URL for clients, as etcdctl wants it.
func (e *Etcd) Endpoint() string { return e.scheme + "://" + e.Addr() }

// DataDir returns the directory with the server's data, which may be replaced while it does not run.
func (e *Etcd) DataDir() string { return filepath.Join(e.dir, "data") }

// MetricsURL returns the URL of the server's metrics, which it serves without TLS and without authentication.
func (e *Etcd) MetricsURL() string { return "http://" + loopback(e.metrics) + "/metrics" }

// Start starts the server, on the ports and with the data that it had before, and waits until it serves: a node of a cluster does when
// a majority runs.
func (e *Etcd) Start(ctx context.Context) error {
	if e.running != nil && !e.running.ended() {
		return errors.New("etcd runs already: stop or kill it first")
	}
	if err := e.launch(); err != nil {
		return err
	}
	return e.ready(ctx)
}

func (e *Etcd) launch() error {
	peer := "http://" + loopback(e.peer)
	args := append([]string{
		"--name=" + e.name, "--data-dir=" + e.DataDir(), "--log-level=warn",
		"--listen-client-urls=" + e.Endpoint(), "--advertise-client-urls=" + e.Endpoint(),
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=" + e.cluster,
		"--listen-metrics-urls=http://" + loopback(e.metrics),
	}, e.flags...)
	p, err := startOwn(e.dir, syscall.SIGKILL, e.program, args...)
	if err != nil {
		return err
	}
	e.running = p
	return nil
}

func (e *Etcd) ready(ctx context.Context) error {
	return e.running.waitReady(ctx, func() (err error) {
		client := http.Client{Timeout: 2 * time.Second}
		response, err := client.Get("http://" + loopback(e.metrics) + "/health")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, response.Body.Close()) }()
		text, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", response.Status, text)
		}
		return err
	})
}

// Stop ends the server as an operator would, and waits for its end. A leader of a cluster hands over first.
func (e *Etcd) Stop() {
	if e.running != nil {
		e.running.stop(syscall.SIGTERM)
	}
}

// Kill ends the server at once with SIGKILL. What was committed is there at the next Start.
func (e *Etcd) Kill() {
	if e.running != nil {
		e.running.kill()
	}
}

// Pause stops a running server with SIGSTOP: its connections stay open and nothing answers.
func (e *Etcd) Pause() { pauseTree(e.running.cmd.Process.Pid) }

// Resume lets a paused server go on. It has no effect on one that is not paused.
func (e *Etcd) Resume() { resumeTree(e.running.cmd.Process.Pid) }

// Log returns the last lines that the server printed.
func (e *Etcd) Log() string { return logTail(filepath.Join(e.dir, "log")) }

// Close ends the server, paused or not, and removes its data.
func (e *Etcd) Close() error {
	e.Kill()
	return os.RemoveAll(e.dir)
}
