package zookeeper_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/driver/drivertest"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/zookeeper"
)

// A candidate's node belongs to the session that made it, so nobody can make another session the holder: there is no OverwriteRecord. What an
// administrator can overwrite has tests of its own.
func TestConformance(t *testing.T) {
	storeURL := testserver.ZooKeeperURL(t)
	operator := connect(t, storeURL)
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		return drivertest.Harness{
			Open:         func(t testing.TB) driver.Store { return open(t, storeURL) },
			DeleteRecord: func(t testing.TB, election string) { deleteElection(t, operator, election) },
			DropSession:  zookeeper.DropSession,
			CorruptRecord: func(t testing.TB, election string) {
				deleteElection(t, operator, election)
				path := zookeeper.Path(election)
				create(t, operator, path, zk.FlagPersistent)
				create(t, operator, path+"/_c_01234567-0123-4123-8123-0123456789ab-latch-0000000000", zk.FlagPersistent)
			},
			Resources: func(t testing.TB) int { return resources(t, storeURL) },
			TTL:       2 * time.Second,
		}
	})
}

func open(t testing.TB, storeURL string) *zookeeper.Store {
	t.Helper()
	s, err := zookeeper.Open(t.Context(), storeURL)
	if err != nil {
		t.Fatalf("open %s: %v", storeURL, err)
	}
	return s
}

// addr returns the host and port of a store URL with one server.
func addr(storeURL string) string {
	host, _, _ := strings.Cut(strings.TrimPrefix(storeURL, "zookeeper://"), "/")
	return host
}

// connect returns a client of an administrator's.
func connect(t testing.TB, storeURL string) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect([]string{addr(storeURL)}, 30*time.Second, zk.WithLogger(quiet{}), zk.WithLogInfo(false))
	if err != nil {
		t.Fatalf("connect to %s: %v", storeURL, err)
	}
	t.Cleanup(conn.Close)
	return conn
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func create(t testing.TB, c *zk.Conn, path string, mode int32) {
	t.Helper()
	if _, err := c.Create(path, []byte("x"), mode, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatalf("create %s: %v", path, err)
	}
}

// deleteElection deletes an election's node with all that is below it.
func deleteElection(t testing.TB, c *zk.Conn, election string) {
	t.Helper()
	remove(t, c, zookeeper.Path(election))
}

func remove(t testing.TB, c *zk.Conn, path string) {
	t.Helper()
	for {
		children, _, err := c.Children(path)
		if errors.Is(err, zk.ErrNoNode) {
			return
		}
		if err != nil {
			t.Fatalf("list %s: %v", path, err)
		}
		for _, child := range children {
			remove(t, c, path+"/"+child)
		}
		err = c.Delete(path, -1)
		if err == nil || errors.Is(err, zk.ErrNoNode) {
			return
		}
		if !errors.Is(err, zk.ErrNotEmpty) { // somebody was faster
			t.Fatalf("delete %s: %v", path, err)
		}
	}
}

// resources counts connections, nodes of sessions and watches at a server.
func resources(t testing.TB, storeURL string) int {
	t.Helper()
	sum := 0
	for line := range strings.Lines(testserver.ZooKeeperCommand(t, addr(storeURL), "mntr")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "\t")
		switch name {
		case "zk_num_alive_connections", "zk_ephemerals_count", "zk_watch_count", "zk_global_sessions":
			n, err := strconv.Atoi(value)
			if err != nil {
				t.Fatalf("mntr says %q", line)
			}
			sum += n
		}
	}
	return sum
}
