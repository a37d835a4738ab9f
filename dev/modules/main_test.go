package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// workspace makes a workspace of two modules, the second of which uses the first without requiring it: the mistake that a
// workspace hides.
func workspace(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range map[string]string{
		"go.work":  "go 1.25.0\n\nuse .\n",
		"go.mod":   "module example.org/a\n\ngo 1.25.0\n",
		"a.go":     "package a\n\nconst A = 1\n",
		"b/go.mod": "module example.org/a/b\n\ngo 1.25.0\n",
		"b/b.go":   "package b\n\nimport \"example.org/a\"\n\nconst B = a.A\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(root)
	t.Setenv("GOFLAGS", "")
	t.Setenv("GOPROXY", "off") // whatever would be looked up is a mistake here
	return root
}

func TestMissingRequirementIsFoundAndTidied(t *testing.T) {
	root := workspace(t)
	if err := run([]string{"add", "b"}); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"check"}); err == nil {
		t.Fatal("check passed a module that does not require what it imports")
	}
	if err := run([]string{"tidy"}); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"check"}); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root, "b", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(mod), "require example.org/a v0.0.0\n") || strings.Contains(string(mod), "replace") {
		t.Errorf("b/go.mod is\n%s\nwant a requirement of example.org/a v0.0.0 and no replace", mod)
	}
	work, err := os.ReadFile(filepath.Join(root, "go.work"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(work), "./b") || !strings.Contains(string(work), "replace example.org/a v0.0.0 => .") {
		t.Errorf("go.work is\n%s\nwant both modules and their replaces", work)
	}
}

func TestUnknownCommandAndDirectory(t *testing.T) {
	workspace(t)
	for _, args := range [][]string{nil, {"prune"}, {"check", "nowhere"}, {"get", "."}, {"add"}} {
		if err := run(args); err == nil {
			t.Errorf("run(%q) succeeded, want an error", args)
		}
	}
}
