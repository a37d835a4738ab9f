//go:build unix

package cli

import (
	"os"
	"path/filepath"
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
	var members []int
	for pid, parent := range parents(t) {
		if parent == demo.cmd.Process.Pid {
			members = append(members, pid)
		}
	}
	if len(members) != 3 {
		t.Fatalf("members: %v", members)
	}
	demo.signal(syscall.SIGINT)
	if code := demo.code(); code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
	for _, pid := range members {
		if err := syscall.Kill(pid, 0); err == nil {
			t.Errorf("member %d lives", pid)
		}
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}
