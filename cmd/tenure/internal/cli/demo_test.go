//go:build unix

package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// An interrupted demo leaves no process and no file behind.
func TestDemoInterrupted(t *testing.T) {
	s := &site{t: t, dir: t.TempDir()}
	tmp := filepath.Join(s.dir, "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", tmp)
	demo := s.tenure("demo", "demo")
	// In the third scene one of the members is stopped.
	s.eventually("a member is stopped", func() bool {
		out, _ := os.ReadFile(filepath.Join(s.dir, "demo.stdout"))
		return strings.Contains(string(out), "kill -STOP")
	})
	members, err := exec.Command("ps", "-o", "pid=", "--ppid", strconv.Itoa(demo.cmd.Process.Pid)).Output()
	if err != nil || len(strings.Fields(string(members))) != 3 {
		t.Fatalf("members: %q, %v", members, err)
	}
	demo.signal(syscall.SIGINT)
	if code := demo.code(); code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
	for _, pid := range strings.Fields(string(members)) {
		if err := exec.Command("kill", "-0", pid).Run(); err == nil {
			t.Errorf("member %s lives", pid)
		}
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}
