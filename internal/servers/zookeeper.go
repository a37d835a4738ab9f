package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// zookeeperJar and zookeeperConf are where Debian's package puts the server and the configuration of its log.
const (
	zookeeperJar  = "/usr/share/java/zookeeper.jar"
	zookeeperConf = "/etc/zookeeper/conf_example"
)

// ZooKeeperMissing returns nil when ZooKeeper's server and a Java to run it are installed.
func ZooKeeperMissing() error {
	if _, err := os.Stat(zookeeperJar); err != nil {
		return fmt.Errorf("ZooKeeper is not installed: run go run ./dev/servers install: %w", err)
	}
	if _, err := exec.LookPath("java"); err != nil {
		return fmt.Errorf("there is no java for ZooKeeper: run go run ./dev/servers install: %w", err)
	}
	return nil
}

// A ZooKeeper is one ZooKeeper server: an ensemble of its own, or a member of one. Its methods are not for concurrent use.
type ZooKeeper struct {
	dir              string
	client           int
	quorum, election int
	running          *process
}

// zookeeperSettings make a server whose sessions may be short, as tests want them, and long.
const zookeeperSettings = `tickTime=200
initLimit=50
syncLimit=25
clientPortAddress=127.0.0.1
admin.enableServer=false
maxClientCnxns=0
minSessionTimeout=400
maxSessionTimeout=3600000
4lw.commands.whitelist=*
`

// StartZooKeeper starts a single server. A setting is a line of zoo.cfg. The server runs until Close; ctx bounds the start only.
func StartZooKeeper(ctx context.Context, settings ...string) (*ZooKeeper, error) {
	all, err := StartZooKeeperEnsemble(ctx, 1, settings...)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// StartZooKeeperEnsemble starts an ensemble of n servers; see StartZooKeeper.
func StartZooKeeperEnsemble(ctx context.Context, n int, settings ...string) ([]*ZooKeeper, error) {
	if !supported {
		return nil, ErrUnsupported
	}
	if err := ZooKeeperMissing(); err != nil {
		return nil, err
	}
	// Another process may take a port between the look and the start.
	for try := 0; ; try++ {
		all, err := startZooKeepers(ctx, n, settings)
		if err == nil {
			return all, nil
		}
		for _, z := range all {
			err = errors.Join(err, z.Close())
		}
		if try == 2 || ctx.Err() != nil {
			return nil, err
		}
	}
}

func startZooKeepers(ctx context.Context, n int, settings []string) (all []*ZooKeeper, err error) {
	for range n {
		dir, err := newDir("zookeeper")
		if err != nil {
			return all, err
		}
		z := &ZooKeeper{dir: dir}
		all = append(all, z)
		for _, port := range []*int{&z.client, &z.quorum, &z.election} {
			if *port, err = freePort(); err != nil {
				return all, err
			}
		}
	}
	var members strings.Builder
	for i, z := range all {
		fmt.Fprintf(&members, "server.%d=127.0.0.1:%d:%d\n", i+1, z.quorum, z.election)
	}
	for i, z := range all {
		text := zookeeperSettings + fmt.Sprintf("clientPort=%d\ndataDir=%s\n", z.client, filepath.Join(z.dir, "data")) + strings.Join(settings, "\n") + "\n"
		if n > 1 {
			text += members.String()
		}
		if err := writeFile(filepath.Join(z.dir, "zoo.cfg"), text); err != nil {
			return all, err
		}
		if err := os.Mkdir(filepath.Join(z.dir, "data"), 0o700); err != nil {
			return all, err
		}
		if err := giveAway(filepath.Join(z.dir, "data")); err != nil {
			return all, err
		}
		if err := writeFile(filepath.Join(z.dir, "data", "myid"), strconv.Itoa(i+1)); err != nil {
			return all, err
		}
		if err := z.launch(); err != nil {
			return all, err
		}
	}
	for _, z := range all {
		if err := z.ready(ctx); err != nil {
			return all, err
		}
	}
	return all, nil
}

// Addr returns the server's host and port for clients.
func (z *ZooKeeper) Addr() string { return loopback(z.client) }

// Start starts the server, on the ports and with the data that it had before, and waits until it serves: a member of an ensemble does when a
// majority runs.
func (z *ZooKeeper) Start(ctx context.Context) error {
	if z.running != nil && !z.running.ended() {
		return errors.New("ZooKeeper runs already: stop or kill it first")
	}
	if err := z.launch(); err != nil {
		return err
	}
	return z.ready(ctx)
}

func (z *ZooKeeper) launch() error {
	// The heap and the compiler are kept small: several servers run beside each other. Containers that are empty are removed every minute by default,
	// which tests do not wait for.
	p, err := start(z.dir, syscall.SIGKILL, "java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dznode.container.checkIntervalMs=500",
		"-cp", zookeeperJar+":"+zookeeperConf, "org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(z.dir, "zoo.cfg"))
	if err != nil {
		return err
	}
	z.running = p
	return nil
}

func (z *ZooKeeper) ready(ctx context.Context) error {
	return z.running.waitReady(ctx, func() error {
		text, err := z.Command("srvr")
		if err == nil && !strings.Contains(text, "Mode: ") {
			err = fmt.Errorf("it says %.100q", text)
		}
		return err
	})
}

// Command sends one of ZooKeeper's four-letter commands and returns the answer.
func (z *ZooKeeper) Command(word string) (string, error) { return ZooKeeperCommand(z.Addr(), word) }

// ZooKeeperCommand sends one of ZooKeeper's four-letter commands to a server's host and port and returns the answer.
func ZooKeeperCommand(addr, word string) (text string, err error) {
	conn, err := net.DialTimeout("tcp", addr, 2*time.Second)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, 1<<20))
	return string(answer), err
}

// Stop ends the server as an operator would, and waits for its end.
func (z *ZooKeeper) Stop() {
	if z.running != nil {
		z.running.stop(syscall.SIGTERM)
	}
}

// Kill ends the server at once with SIGKILL. What was committed is there at the next Start.
func (z *ZooKeeper) Kill() {
	if z.running != nil {
		z.running.kill()
	}
}

// Pause stops a running server with SIGSTOP: its connections stay open and nothing answers.
func (z *ZooKeeper) Pause() { pauseTree(z.running.cmd.Process.Pid) }

// Resume lets a paused server go on. It has no effect on one that is not paused.
func (z *ZooKeeper) Resume() { resumeTree(z.running.cmd.Process.Pid) }

// Log returns the last lines that the server printed.
func (z *ZooKeeper) Log() string { return logTail(filepath.Join(z.dir, "log")) }

// Close ends the server, paused or not, and removes its data.
func (z *ZooKeeper) Close() error {
	z.Kill()
	return os.RemoveAll(z.dir)
}
