package testserver

import (
	"testing"

	"github.com/gotenure/tenure/internal/servers"
)

// ConsulURL returns the store URL of a running Consul that all tests share.
func ConsulURL(t testing.TB) string {
	t.Helper()
	return getenv(t, "TENURE_TEST_CONSUL")
}

// ConsulProgram returns the path of the program consul. Where it is not built the test is skipped.
func ConsulProgram(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a Consul: run it without -short")
	}
	program, err := servers.ConsulProgram()
	if err != nil {
		t.Skip(err)
	}
	return program
}

// A Consul is a server of one test's own, to crash and to stop. Its methods are called from the test's goroutine, and end the test when they
// fail.
type Consul struct {
	t      testing.TB
	server *servers.Consul
}

// StartConsul starts a server that runs until the test ends. Where Consul is not built the test is skipped. A setting is a line of its configuration in
// HCL; one that starts with tls makes it serve HTTPS too. Sessions may have TTLs from one second on, unless a setting says otherwise.
func StartConsul(t testing.TB, settings ...string) *Consul {
	t.Helper()
	ConsulProgram(t)
	s, err := servers.StartConsul(t.Context(), settings...)
	if err != nil {
		t.Fatalf("start consul: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log of consul at %s:\n%s", s.Addr(), s.Log())
		}
		if err := s.Close(); err != nil {
			t.Errorf("remove consul: %v", err)
		}
	})
	return &Consul{t: t, server: s}
}

// URL returns the store URL.
func (c *Consul) URL() string { return "consul://" + c.Addr() + "?min-ttl=1s" }

// Addr returns the server's host and port for HTTP, which outlive a restart.
func (c *Consul) Addr() string { return c.server.Addr() }

// HTTPSAddr returns the server's host and port for HTTPS.
func (c *Consul) HTTPSAddr() string { return c.server.HTTPSAddr() }

// Stop ends the server as an operator would, and returns when it has ended.
func (c *Consul) Stop() { c.server.Stop() }

// Kill ends the server at once with SIGKILL.
func (c *Consul) Kill() { c.server.Kill() }

// Start starts the server again after Stop or Kill, with the data that it had, and returns when it serves.
func (c *Consul) Start() {
	c.t.Helper()
	if err := c.server.Start(c.t.Context()); err != nil {
		c.t.Fatalf("start consul again: %v", err)
	}
}

// Pause stops the server with SIGSTOP: connections stay open and nothing answers until Resume.
func (c *Consul) Pause() { c.server.Pause() }

// Resume lets a paused server go on.
func (c *Consul) Resume() { c.server.Resume() }
