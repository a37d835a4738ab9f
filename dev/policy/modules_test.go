package policy

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	modulePath = "github.com/gotenure/tenure"
	goVersion  = "1.25.0" // the oldest that upstream supports

	// siblingVersion is what modules say of each other until there is a release.
	siblingVersion = "v0.0.0"
)

// root is the repository: go test runs a test in its package's directory.
const root = "../.."

// files returns the slash-separated paths, below root, of all files that belong to the repository, hidden directories aside.
func files(t *testing.T) []string {
	t.Helper()
	var all []string
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && strings.HasPrefix(d.Name(), ".") && d.Name() != ".ci":
			return fs.SkipDir
		case d.Type().IsRegular():
			all = append(all, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("found %d files only: this test looks in the wrong place", len(all))
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

type replace struct {
	Old struct{ Path, Version string }
	New struct{ Path string }
}

type goMod struct {
	dir     string // slash-separated, below root
	Module  struct{ Path string }
	Go      string
	Require []struct{ Path, Version string }
	Replace []replace
}

func editJSON(t *testing.T, into any, args ...string) {
	t.Helper()
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatalf("go %s: %v", strings.Join(args, " "), err)
	}
	if err := json.Unmarshal(out, into); err != nil {
		t.Fatal(err)
	}
}

// readModules is what modules found, which several tests ask for again and again.
var readModules []goMod

func modules(t *testing.T) []goMod {
	t.Helper()
	if readModules != nil {
		return readModules
	}
	var all []goMod
	for _, path := range files(t) {
		if path != "go.mod" && !strings.HasSuffix(path, "/go.mod") || strings.Contains(path, "testdata/") {
			continue
		}
		m := goMod{dir: strings.TrimSuffix(strings.TrimSuffix(path, "go.mod"), "/")}
		editJSON(t, &m, "mod", "edit", "-json", filepath.Join(root, path))
		all = append(all, m)
	}
	readModules = all
	return all
}

// go install path@version refuses a module with a replace; a user of an old go.mod gets an old Go; and the root module is what
// everybody depends on.
func TestGoMod(t *testing.T) {
	all := modules(t)
	for _, m := range all {
		if want := strings.TrimSuffix(modulePath+"/"+m.dir, "/"); m.Module.Path != want {
			t.Errorf("%s/go.mod: module %s, want %s", m.dir, m.Module.Path, want)
		}
		if m.Go != goVersion {
			t.Errorf("%s/go.mod: go %s, want %s like all modules", m.dir, m.Go, goVersion)
		}
		if len(m.Replace) > 0 {
			t.Errorf("%s/go.mod: has a replace; only go.work may", m.dir)
		}
		if m.dir == "" && len(m.Require) > 0 {
			t.Errorf("go.mod: requires %s; the root module depends on the standard library alone", m.Require[0].Path)
		}
		for _, r := range m.Require {
			sibling := slices.ContainsFunc(all, func(s goMod) bool { return s.Module.Path == r.Path })
			if sibling && r.Version != siblingVersion {
				t.Errorf("%s/go.mod: requires %s %s, want %s: run go run ./dev/modules tidy", m.dir, r.Path, r.Version, siblingVersion)
			}
		}
	}
}

func TestGoWorkListsEveryModule(t *testing.T) {
	var work struct {
		Go      string
		Use     []struct{ DiskPath string }
		Replace []replace
	}
	editJSON(t, &work, "work", "edit", "-json", filepath.Join(root, "go.work"))
	if work.Go != goVersion {
		t.Errorf("go.work: go %s, want %s", work.Go, goVersion)
	}
	var used, found []string
	for _, use := range work.Use {
		used = append(used, use.DiskPath)
	}
	for _, m := range modules(t) {
		dir := strings.TrimSuffix("./"+m.dir, "/")
		found = append(found, dir)
		if !slices.ContainsFunc(work.Replace, func(r replace) bool {
			return r.Old.Path == m.Module.Path && r.Old.Version == siblingVersion && r.New.Path == dir
		}) {
			t.Errorf("go.work: no replace of %s %s by %s: run go run ./dev/modules tidy", m.Module.Path, siblingVersion, dir)
		}
	}
	slices.Sort(used)
	slices.Sort(found)
	if !slices.Equal(used, found) {
		t.Errorf("go.work uses %v, and there are %v: run go run ./dev/modules add", used, found)
	}
}
