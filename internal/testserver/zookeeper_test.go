package testserver_test

import (
	"strings"
	"testing"

	"github.com/gotenure/tenure/internal/testserver"
)

func TestZooKeeper(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	z.Kill()
	z.Start()
	if text := testserver.ZooKeeperCommand(t, z.Addr(), "srvr"); !strings.Contains(text, "Mode: standalone") {
		t.Errorf("after a restart it says %q", text)
	}
	z.Stop()
	z.Start()
}

func TestZooKeeperEnsemble(t *testing.T) {
	t.Parallel()
	leaders := 0
	for _, z := range testserver.StartZooKeeperEnsemble(t, 3) {
		if z.Leads() {
			leaders++
		}
	}
	if leaders != 1 {
		t.Errorf("an ensemble has %d leaders", leaders)
	}
}
