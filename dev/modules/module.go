package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/version"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// unpublished is the version that go mod tidy invents for a module that it knows only by a replace. The go.mod files of this
// repository say siblingVersion instead, until there is a release.
const (
	unpublished    = "v0.0.0-00010101000000-000000000000"
	siblingVersion = "v0.0.0"
)

// A module is one directory of go.work.
type module struct {
	dir       string // absolute
	rel       string // as in go.work: "./store/sqlite"
	path      string
	goVersion string
	requires  []string
}

// load returns the modules of go.work, each after the siblings that it requires, so that tidy sees siblings that are tidy.
func load(root string) ([]module, error) {
	var work struct{ Use []struct{ DiskPath string } }
	if err := readJSON(root, &work, "work", "edit", "-json", filepath.Join(root, "go.work")); err != nil {
		return nil, err
	}
	var modules []module
	for _, use := range work.Use {
		var file struct {
			Module  struct{ Path string }
			Go      string
			Require []struct{ Path string }
		}
		dir := filepath.Join(root, filepath.FromSlash(use.DiskPath))
		if err := readJSON(root, &file, "mod", "edit", "-json", filepath.Join(dir, "go.mod")); err != nil {
			return nil, err
		}
		m := module{dir: dir, rel: use.DiskPath, path: file.Module.Path, goVersion: file.Go}
		for _, r := range file.Require {
			m.requires = append(m.requires, r.Path)
		}
		modules = append(modules, m)
	}
	return inOrder(modules), nil
}

func readJSON(dir string, into any, args ...string) error {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return json.Unmarshal(out, into)
}

// writeWork gives go.work its replaces. A replace of all versions would be refused there: only siblingVersion is replaced.
func writeWork(root string, all []module) error {
	edit := []string{"work", "edit", "-fmt"}
	for _, m := range all {
		edit = append(edit, "-replace="+m.path+"@"+siblingVersion+"="+m.rel)
	}
	return goCommand(root, append(edit, filepath.Join(root, "go.work"))...)
}

func inOrder(modules []module) []module {
	var ordered []module
	seen := map[string]bool{}
	var visit func(m module)
	visit = func(m module) {
		if seen[m.path] {
			return
		}
		seen[m.path] = true
		for _, sibling := range modules {
			if slices.Contains(m.requires, sibling.path) {
				visit(sibling)
			}
		}
		ordered = append(ordered, m)
	}
	for _, m := range modules {
		visit(m)
	}
	return ordered
}

// withModfile calls do with a throw-away copy of m's go.mod, beside a copy of its go.sum, in which every sibling is replaced by
// its directory.
func withModfile(m module, all []module, do func(m module, modfile string) error) error {
	tmp, err := os.MkdirTemp("", "tenure-modules-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // a leftover in the temporary directory harms nobody
	modfile := filepath.Join(tmp, "go.mod")
	if err := copyFile(modfile, filepath.Join(m.dir, "go.mod")); err != nil {
		return err
	}
	sum := filepath.Join(m.dir, "go.sum")
	if err := copyFile(filepath.Join(tmp, "go.sum"), sum); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	edit := []string{"mod", "edit", "-fmt"} // go mod edit insists on a flag, and a lone module has no sibling
	for _, sibling := range all {
		if sibling.path != m.path {
			edit = append(edit, "-replace="+sibling.path+"="+sibling.dir)
		}
	}
	if err := goCommand(m.dir, append(edit, modfile)...); err != nil {
		return err
	}
	return do(m, modfile)
}

// writeBack puts the throw-away go.mod, without its replaces, and its go.sum in the place of the module's own.
func (m module) writeBack(modfile string) error {
	var file struct {
		Go      string
		Replace []struct{ Old struct{ Path string } }
	}
	if err := readJSON(m.dir, &file, "mod", "edit", "-json", modfile); err != nil {
		return err
	}
	if file.Go != m.goVersion {
		return m.tooNew(modfile, file.Go)
	}
	edit := []string{"mod", "edit", "-fmt"}
	for _, r := range file.Replace {
		edit = append(edit, "-dropreplace="+r.Old.Path)
	}
	if err := goCommand(m.dir, append(edit, modfile)...); err != nil {
		return err
	}
	text, err := os.ReadFile(modfile)
	if err != nil {
		return err
	}
	text = bytes.ReplaceAll(text, []byte(unpublished), []byte(siblingVersion))
	if err := writeChanged(filepath.Join(m.dir, "go.mod"), text); err != nil {
		return err
	}
	sum, err := os.ReadFile(filepath.Join(filepath.Dir(modfile), "go.sum"))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(sum) == 0 {
		return nil // nothing required that is not in this repository
	}
	if err != nil {
		return err
	}
	return writeChanged(filepath.Join(m.dir, "go.sum"), sum)
}

// tooNew names the requirements that want a newer Go than the module's go.mod says, which the go command would quietly raise.
func (m module) tooNew(modfile, goVersion string) error {
	cmd := exec.Command("go", "list", "-modfile="+modfile, "-m", "-f", "{{.GoVersion}} {{.Path}}@{{.Version}}", "all")
	cmd.Dir = m.dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go list -m: %w", err)
	}
	var culprits strings.Builder
	for line := range strings.Lines(string(out)) {
		if v, _, _ := strings.Cut(line, " "); v != "" && version.Compare("go"+v, "go"+m.goVersion) > 0 {
			culprits.WriteString(line)
		}
	}
	return fmt.Errorf("go %s in go.mod would become %s; these want it:\n%sremedy: go run ./dev/modules get %s PATH@OLDER",
		m.goVersion, goVersion, culprits.String(), m.rel)
}

func copyFile(to, from string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o644)
}

// writeChanged leaves a file alone that already says text, so that builds and editors see no change.
func writeChanged(path string, text []byte) error {
	old, err := os.ReadFile(path)
	if err == nil && bytes.Equal(old, text) {
		return nil
	}
	return os.WriteFile(path, text, 0o644)
}
