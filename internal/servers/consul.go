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

//go:embed consul.mod.txt
var consulMod string

//go:embed consul.sum.txt
var consulSum string

// The newest minor version under the Mozilla Public License whose modules need no replacement by hand.
var consulSource = source{
	name: "consul", version: "1.14.11", mod: consulMod, sum: consulSum,
	programs: map[string]string{"consul": "github.com/hashicorp/consul"},
}

// ConsulProgram returns the path of the program consul. TENURE_TEST_CONSUL_BIN may point to a directory that has another version.
func ConsulProgram() (string, error) {
	dir := os.Getenv("TENURE_TEST_CONSUL_BIN")
	if dir == "" {
		return consulSource.program("consul")
	}
	path := filepath.Join(dir, "consul")
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("TENURE_TEST_CONSUL_BIN %q has no consul: point it to a directory that has: %w", dir, err)
	}
	return path, nil
}

// BuildConsul builds consul unless it is there.
func BuildConsul(ctx context.Context) error {
	if os.Getenv("TENURE_TEST_CONSUL_BIN") != "" {
		return nil
	}
	return consulSource.build(ctx)
}

// A Consul is one server that is a cluster of its own. Its methods are not for concurrent use.
type Consul struct {
	program, dir            string
	http, https, serf, raft int
	settings                []string
	running                 *process
}

// StartConsul starts a server. A setting is a line of its configuration in HCL; ports { https = … } is for HTTPSAddr to say, and set when a
// setting starts with tls. The shortest session is one second unless a setting says otherwise. The server runs until Close; ctx bounds
// the start only.
func StartConsul(ctx context.Context, settings ...string) (*Consul, error) {
	if !supported {
		return nil, ErrUnsupported
	}
	program, err := ConsulProgram()
	if err != nil {
		return nil, err
	}
	// Another process may take a port between the look and the start.
	for try := 0; ; try++ {
		c, err := startConsul(ctx, program, settings)
		if err == nil {
			return c, nil
		}
		if c != nil {
			err = errors.Join(err, c.Close())
		}
		if try == 2 || ctx.Err() != nil {
			return nil, err
		}
	}
}

func startConsul(ctx context.Context, program string, settings []string) (*Consul, error) {
	dir, err := newDir("consul")
	if err != nil {
		return nil, err
	}
	c := &Consul{program: program, dir: dir, settings: settings}
	for _, port := range []*int{&c.http, &c.https, &c.serf, &c.raft} {
		if *port, err = freePort(); err != nil {
			return c, err
		}
	}
	return c, c.Start(ctx)
}

// Addr returns the server's host and port for HTTP.
func (c *Consul) Addr() string { return loopback(c.http) }

// HTTPSAddr returns the server's host and port for HTTPS, which it serves when a setting starts with tls.
func (c *Consul) HTTPSAddr() string { return loopback(c.https) }

// Start starts the server, on the ports and with the data that it had before, and waits until it is its cluster's leader and serves.
func (c *Consul) Start(ctx context.Context) error {
	if c.running != nil && !c.running.ended() {
		return errors.New("consul runs already: stop or kill it first")
	}
	https := -1
	for _, s := range c.settings {
		if strings.HasPrefix(s, "tls") {
			https = c.https
		}
	}
	settings := append([]string{
		"server = true", "bootstrap = true", "disable_update_check = true", "leave_on_terminate = false",
		"performance { raft_multiplier = 1 }", `session_ttl_min = "1s"`, "connect { enabled = false }",
		// All tests come from one address.
		"limits { http_max_conns_per_client = 10000 }",
		fmt.Sprintf("ports { http = %d, https = %d, dns = -1, grpc = -1, grpc_tls = -1, serf_lan = %d, serf_wan = -1, server = %d }",
			c.http, https, c.serf, c.raft),
	}, c.settings...)
	args := []string{
		"agent", "-node=n1", "-bind=127.0.0.1", "-client=127.0.0.1", "-log-level=warn", "-data-dir=" + filepath.Join(c.dir, "data"),
	}
	for _, s := range settings {
		args = append(args, "-hcl="+s)
	}
	p, err := startOwn(c.dir, syscall.SIGKILL, c.program, args...)
	if err != nil {
		return err
	}
	c.running = p
	return p.waitReady(ctx, c.ready)
}

// ready returns nil when the server takes writes and, what comes later, sessions. With access control there is no telling the latter without a token.
func (c *Consul) ready() error {
	leader, err := c.get("/v1/status/leader")
	if err == nil && leader == `""` {
		err = errors.New("no leader yet")
	}
	for _, s := range c.settings {
		if strings.HasPrefix(s, "acl") {
			return err
		}
	}
	if err != nil {
		return err
	}
	checks, err := c.get("/v1/health/node/n1") // sessions are of a node, and those of other clients depend on its check
	if err == nil && !strings.Contains(checks, "serfHealth") {
		err = errors.New("the node is not registered yet")
	}
	return err
}

func (c *Consul) get(path string) (text string, err error) {
	client := http.Client{Timeout: 2 * time.Second}
	response, err := client.Get("http://" + c.Addr() + path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if text = strings.TrimSpace(string(body)); err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return text, err
}

// Stop ends the server as an operator would, and waits for its end.
func (c *Consul) Stop() {
	if c.running != nil {
		c.running.stop(syscall.SIGTERM)
	}
}

// Kill ends the server at once with SIGKILL. What was committed is there at the next Start.
func (c *Consul) Kill() {
	if c.running != nil {
		c.running.kill()
	}
}

// Pause stops a running server with SIGSTOP: its connections stay open and nothing answers.
func (c *Consul) Pause() { pauseTree(c.running.cmd.Process.Pid) }

// Resume lets a paused server go on. It has no effect on one that is not paused.
func (c *Consul) Resume() { resumeTree(c.running.cmd.Process.Pid) }

// Log returns the last lines that the server printed.
func (c *Consul) Log() string { return logTail(filepath.Join(c.dir, "log")) }

// Close ends the server, paused or not, and removes its data.
func (c *Consul) Close() error {
	c.Kill()
	return os.RemoveAll(c.dir)
}
