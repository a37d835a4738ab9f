package testserver

import (
	"strings"
	"testing"

	"github.com/gotenure/tenure/internal/servers"
)

// ZooKeeperURL returns the store URL of a running ZooKeeper that all tests share.
func ZooKeeperURL(t testing.TB) string {
	t.Helper()
	return getenv(t, "TENURE_TEST_ZOOKEEPER")
}

// ZooKeeperCommand sends one of ZooKeeper's four-letter commands to the server at a host and port, and returns the answer.
func ZooKeeperCommand(t testing.TB, addr, word string) string {
	t.Helper()
	text, err := servers.ZooKeeperCommand(addr, word)
	if err != nil {
		t.Fatalf("ask ZooKeeper at %s for %s: %v", addr, word, err)
	}
	return text
}

// A ZooKeeper is a ZooKeeper server of one test's own, a single one or a member of an ensemble, to crash and to stop. Its methods are called from
// the test's goroutine, and end the test when they fail.
type ZooKeeper struct {
	t      testing.TB
	server *servers.ZooKeeper
}

// StartZooKeeper starts a single server that runs until the test ends. Where ZooKeeper is not installed the test is skipped. A setting is a line of
// zoo.cfg. The server does not wait for the disk, so it keeps what was committed when it is killed, but not when the machine is.
func StartZooKeeper(t testing.TB, settings ...string) *ZooKeeper {
	t.Helper()
	return StartZooKeeperEnsemble(t, 1, settings...)[0]
}

// StartZooKeeperEnsemble starts an ensemble of n servers; see StartZooKeeper.
func StartZooKeeperEnsemble(t testing.TB, n int, settings ...string) []*ZooKeeper {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a ZooKeeper: run it without -short")
	}
	if err := servers.ZooKeeperMissing(); err != nil {
		t.Skip(err)
	}
	started, err := servers.StartZooKeeperEnsemble(t.Context(), n, append([]string{"forceSync=no"}, settings...)...)
	if err != nil {
		t.Fatalf("start ZooKeeper: %v", err)
	}
	var all []*ZooKeeper
	for _, s := range started {
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("the end of the log of ZooKeeper at %s:\n%s", s.Addr(), s.Log())
			}
			if err := s.Close(); err != nil {
				t.Errorf("remove ZooKeeper: %v", err)
			}
		})
		all = append(all, &ZooKeeper{t: t, server: s})
	}
	return all
}

// URL returns the store URL of this server alone.
func (z *ZooKeeper) URL() string { return "zookeeper://" + z.Addr() }

// Addr returns the server's host and port for clients, which outlive a restart.
func (z *ZooKeeper) Addr() string { return z.server.Addr() }

// Leads reports whether the server leads its ensemble.
func (z *ZooKeeper) Leads() bool {
	text, err := z.server.Command("srvr")
	return err == nil && strings.Contains(text, "Mode: leader")
}

// Stop ends the server as an operator would, and returns when it has ended.
func (z *ZooKeeper) Stop() { z.server.Stop() }

// Kill ends the server at once with SIGKILL.
func (z *ZooKeeper) Kill() { z.server.Kill() }

// Start starts the server again after Stop or Kill, with the data that it had, and returns when it serves.
func (z *ZooKeeper) Start() {
	z.t.Helper()
	if err := z.server.Start(z.t.Context()); err != nil {
		z.t.Fatalf("start ZooKeeper again: %v", err)
	}
}

// Pause stops the server with SIGSTOP: connections stay open and nothing answers until Resume.
func (z *ZooKeeper) Pause() { z.server.Pause() }

// Resume lets a paused server go on.
func (z *ZooKeeper) Resume() { z.server.Resume() }
