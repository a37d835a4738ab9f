package main

import (
	"bufio"
	"errors"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// build returns the program, unless a server would have to be installed first: a test does not do that to a machine.
func build(t *testing.T) string {
	t.Helper()
	if testing.Short() || runtime.GOOS != "linux" {
		t.Skip("starts servers: run it on Linux without -short")
	}
	for _, s := range table {
		if err := s.missing(); err != nil {
			t.Skipf("%s is not installed: %v", s.name, err)
		}
	}
	program := filepath.Join(t.TempDir(), "servers")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return program
}

func TestPassesExitCodeAndEnvironmentOn(t *testing.T) {
	cmd := exec.Command(build(t), "--", "sh", "-c", "echo $TENURE_TEST_POSTGRES $TENURE_TEST_PGBOUNCER; exit 7")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Fatalf("%v, want exit code 7; printed %q", err, out)
	}
	urls := strings.Fields(string(out))
	if len(urls) != 2 {
		t.Fatalf("printed %q, want two URLs", out)
	}
	for _, u := range urls {
		wantStopped(t, u)
	}
}

func TestStopsServersOnSignal(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			tmp := tempDir(t)
			cmd := exec.Command(build(t), "up")
			cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			var urls []string
			for len(urls) < 2 && lines.Scan() {
				if _, quoted, ok := strings.Cut(lines.Text(), "='postgres:"); ok {
					urls = append(urls, "postgres:"+strings.TrimSuffix(quoted, "'"))
				}
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // killed programs have no exit code to check
			if len(urls) != 2 {
				t.Fatalf("printed the URLs %q, want two", urls)
			}
			for _, u := range urls {
				wantStopped(t, u)
			}
			left, err := os.ReadDir(tmp)
			if err != nil {
				t.Fatal(err)
			}
			if sig != syscall.SIGKILL && len(left) > 0 {
				t.Errorf("left %v behind", left)
			}
		})
	}
}

// tempDir returns a directory through which the user that servers run as may pass, unlike that of t.TempDir.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tenure-servers-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func wantStopped(t *testing.T, serverURL string) {
	t.Helper()
	u, err := url.Parse(serverURL)
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(30 * time.Second)
	for {
		conn, err := net.Dial("tcp", u.Host)
		if err != nil {
			return
		}
		_ = conn.Close() // only whether it opens matters
		if time.Now().After(end) {
			t.Fatalf("%s still accepts connections", u.Host)
		}
		time.Sleep(20 * time.Millisecond) // between two looks at another process
	}
}
