// Package servers starts real database servers on free loopback ports, for the programs below dev and for tests.
//
// A server runs in a temporary directory of its own and is stopped by process id. It also dies when the process that started it
// does. Servers start on Linux only; on other systems every start returns ErrUnsupported.
package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// ErrUnsupported says that this package cannot start servers on this operating system.
var ErrUnsupported = errors.New("servers are started on Linux only")

// readyTimeout is how long a server may take to answer. It takes well under a second on an idle machine.
const readyTimeout = 60 * time.Second

// A process is one run of a server program. Its methods may be called concurrently.
type process struct {
	cmd  *exec.Cmd
	log  string // path of the file that has what the server printed
	done chan struct{}
}

// newDir makes the directory of a server, owned by the user that the server will run as.
func newDir(name string) (string, error) {
	dir, err := os.MkdirTemp("", "tenure-"+name+"-")
	if err != nil {
		return "", err
	}
	if err := giveAway(dir); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// writeFile writes a file that the server's user may read and nobody else.
func writeFile(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return giveAway(path)
}

// runIn runs a program to its end as the server's user.
func runIn(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if err := setUser(cmd); err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

// start starts a server program as the server's user; died is the signal it gets if this process dies first.
func start(dir string, died syscall.Signal, name string, args ...string) (*process, error) {
	cmd := exec.Command(name, args...)
	if err := setUser(cmd); err != nil {
		return nil, err
	}
	return startCommand(dir, died, cmd)
}

// startOwn is start as this process's own user, whose cache has the programs that were built here.
func startOwn(dir string, died syscall.Signal, name string, args ...string) (*process, error) {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	return startCommand(dir, died, cmd)
}

func startCommand(dir string, died syscall.Signal, cmd *exec.Cmd) (*process, error) {
	p := &process{
		cmd:  cmd,
		log:  filepath.Join(dir, "log"),
		done: make(chan struct{}),
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, log, log
	setDeathSignal(p.cmd, died)
	started := make(chan error)
	go func() {
		// The kernel sends the death signal when the thread that started the child ends, so that thread stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer func() { _ = log.Close() }() // the server writes it, not this process
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // how a server ended is in its log
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// stop sends a signal and waits for the end; a server that takes longer than 30 s is killed.
func (p *process) stop(sig syscall.Signal) {
	_ = p.cmd.Process.Signal(sig) // it may be gone already, which is what is wanted
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		p.kill()
	}
}

// kill ends the server and all its children at once, so that none of them can finish what it was doing.
func (p *process) kill() {
	killTree(p.cmd.Process.Pid)
	<-p.done
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// waitReady polls until the server answers, or ended, or took too long.
func (p *process) waitReady(ctx context.Context, probe func() error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		err := probe()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended before it was ready: %s", p.cmd.Path, logTail(p.log))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %w: %s", p.cmd.Path, context.Cause(ctx), err, logTail(p.log))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// logTail returns the last lines that a server printed.
func logTail(path string) string {
	const keep = 2000
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-keep):]))
}
