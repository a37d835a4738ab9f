//go:build linux

package sqlite_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/sqlite"
)

// patience bounds waits for what must happen. It is waited out only when a test fails.
const patience = 30 * time.Second

// roles are what the test binary does when a test runs it as a process of its own. Each prints lines for the test to read, and may read lines from it.
var roles = map[string]func(ctx context.Context, path string, args []string) error{}

func TestMain(m *testing.M) {
	if role := os.Getenv("TENURE_SQLITE_ROLE"); role != "" {
		var args []string
		err := json.Unmarshal([]byte(os.Getenv("TENURE_SQLITE_ARGS")), &args)
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			err = roles[role](ctx, os.Getenv("TENURE_SQLITE_PATH"), args)
		}
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A process is a role of the test binary.
type process struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string // closed when it has ended
	err   error       // how it ended, once lines is closed
}

// start runs a role. The process is killed at the end of the test at the latest.
func start(t testing.TB, role, path string, args ...string) *process {
	t.Helper()
	return startWith(t, nil, role, path, args...)
}

func startWith(t testing.TB, change func(*exec.Cmd), role, path string, args ...string) *process {
	t.Helper()
	encoded, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(os.Args[0]), lines: make(chan string, 1000)}
	p.cmd.Env = append(os.Environ(), "TENURE_SQLITE_ROLE="+role, "TENURE_SQLITE_PATH="+path, "TENURE_SQLITE_ARGS="+string(encoded))
	p.cmd.Stderr = os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(p.cmd)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start of role %s: %v", role, err)
	}
	go func() {
		scanner := bufio.NewScanner(stdout)
		for scanner.Scan() {
			p.lines <- scanner.Text()
		}
		p.err = p.cmd.Wait()
		close(p.lines)
	}()
	t.Cleanup(func() {
		p.kill()
		for range p.lines {
		}
	})
	return p
}

func (p *process) kill() { _ = p.cmd.Process.Kill() }

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// say writes a line to the process.
func (p *process) say(line string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.stdin, line); err != nil {
		p.t.Fatal(err)
	}
}

// line returns the next line of the process's output.
func (p *process) line() string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			p.t.Fatalf("the process has ended: %v", p.err)
		}
		return line
	case <-time.After(patience):
		p.t.Fatalf("the process has said nothing for %v", patience)
	}
	return ""
}

// expect reads lines until one starts with prefix, and returns its rest.
func (p *process) expect(prefix string) string {
	p.t.Helper()
	for {
		line := p.line()
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			return strings.TrimSpace(rest)
		}
		if strings.HasPrefix(line, "error:") {
			p.t.Fatalf("the process was to say %q and said %q", prefix, line)
		}
	}
}

// ended waits until the process has ended.
func (p *process) ended() error {
	p.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case _, ok := <-p.lines:
			if !ok {
				return p.err
			}
		case <-timeout:
			p.t.Fatalf("the process has not ended in %v", patience)
		}
	}
}

// heard waits for a line from the test.
func heard(input *bufio.Reader) (string, error) {
	line, err := input.ReadString('\n')
	return strings.TrimSpace(line), err
}

// session opens a session that is closed at the end of the test.
func session(t testing.TB, store driver.Store, member string, ttl time.Duration) driver.Session {
	t.Helper()
	s, err := store.Open(within(t, patience), member, ttl)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Close(ctx) // the test may have taken the file away
	})
	return s
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// openFor opens a store that is closed at the end of the test.
func openFor(t testing.TB, path string) *sqlite.Store {
	t.Helper()
	store := open(t, path)
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return store
}

func acquire(t testing.TB, s driver.Session, election string) driver.Record {
	t.Helper()
	r, err := s.Acquire(within(t, patience), driver.Bid{Election: election, Queue: true})
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return r
}

// campaign waits until the session holds the election.
func campaign(ctx context.Context, s driver.Session, election string) (driver.Record, error) {
	for {
		r, err := s.Acquire(ctx, driver.Bid{Election: election, Queue: true})
		if !errors.Is(err, driver.ErrHeld) {
			return r, err
		}
		if err := s.Await(ctx, election); err != nil {
			return r, err
		}
	}
}
