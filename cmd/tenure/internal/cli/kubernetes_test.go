//go:build unix

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gotenure/tenure/internal/testserver"
)

// The commands on Kubernetes.
func TestKubernetesCommands(t *testing.T) {
	s := &site{t: t, dir: t.TempDir(), store: testserver.KubernetesURL(t)}
	check := func(id string, code int, want string, args ...string) {
		t.Helper()
		r := s.tenure(id, args...)
		if got := r.code(); got != code {
			t.Errorf("%v: exit code %d, want %d", args, got, code)
		}
		out, _ := os.ReadFile(filepath.Join(s.dir, id+".stdout"))
		if text := string(out) + r.log(); !strings.Contains(text, want) {
			t.Errorf("%v: %q does not contain %q", args, text, want)
		}
	}
	check("init", 0, "is ready", "store", "init")
	check("schema", 0, `verbs: ["get", "list", "watch", "create", "update"]`, "store", "schema")
	check("run", 0, "hello", "run", "Command/on Kubernetes", "--", "echo", "hello")
	check("code", 7, "", "run", "Command/on Kubernetes", "--", "sh", "-c", "exit 7")
	check("status", 0, "(vacant)", "status", "Command/on Kubernetes")
	s.store = "kubernetes://default?kubeconfig=/nonexistent"
	check("config", codeConfig, "check the file", "status")
}
