package policy

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

type source struct {
	path, dir string // slash-separated, below root; dir is "." for the core
	module    string // directory of its module, "." for the root module
	text      string
	set       *token.FileSet
	file      *ast.File
}

func (s source) test() bool { return strings.HasSuffix(s.path, "_test.go") }

// in reports whether the source is in one of the directories or below.
func (s source) in(dirs ...string) bool { return within(s.dir, dirs...) }

func within(dir string, dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return dir == d || strings.HasPrefix(dir, d+"/") })
}

func (s source) imports(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, i := range s.file.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

func sources(t *testing.T) []source {
	t.Helper()
	var dirs []string
	for _, m := range modules(t) {
		dirs = append(dirs, m.dir)
	}
	var all []source
	for _, p := range files(t) {
		if path.Ext(p) != ".go" || strings.Contains(p, "testdata/") {
			continue
		}
		s := source{path: p, dir: path.Dir(p), module: ".", text: read(t, p), set: token.NewFileSet()}
		for _, dir := range dirs {
			if dir != "" && s.in(dir) && len(dir) > len(s.module) {
				s.module = dir
			}
		}
		var err error
		if s.file, err = parser.ParseFile(s.set, p, s.text, parser.ParseComments|parser.SkipObjectResolution); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

func TestFormatted(t *testing.T) {
	for _, s := range sources(t) {
		if want, err := format.Source([]byte(s.text)); err != nil || !bytes.Equal(want, []byte(s.text)) {
			t.Errorf("%s is not formatted: run make fmt (%v)", s.path, err)
		}
	}
}

// Arrows point down only: command, what people do with leadership, core, contract, stores.
func TestImports(t *testing.T) {
	for _, s := range sources(t) {
		for _, imported := range s.imports(t) {
			own, isOwn := strings.CutPrefix(imported+"/", modulePath+"/")
			own = path.Clean(own) // "." for the core
			standard := !strings.Contains(strings.Split(imported, "/")[0], ".")
			switch {
			case s.module == "." && !standard && (!isOwn || moduleOf(t, own) != "."):
				t.Errorf("%s imports %s: the root module's packages import the standard library and each other only", s.path, imported)
			case isOwn && within(own, "cmd") && !s.in("cmd"):
				t.Errorf("%s imports %s: nothing imports the command", s.path, imported)
			case s.test() || !isOwn && imported != "testing":
			case imported == "testing" && !s.in("driver/drivertest", "internal/testserver", "test"):
				t.Errorf("%s imports testing: only tests do", s.path)
			case !isOwn:
			case own == "internal/testserver" || own == "driver/drivertest":
				if !s.in("internal/testserver", "driver/drivertest", "test") {
					t.Errorf("%s imports %s: only tests do", s.path, imported)
				}
			case s.dir == "." && own != "driver":
				t.Errorf("%s imports %s: the core knows the contract only", s.path, imported)
			case s.dir == "driver":
				t.Errorf("%s imports %s: the contract knows nobody", s.path, imported)
			case s.in("store") && own != "driver" && !within(own, "store/sqlstore") && !within(own, s.dir):
				t.Errorf("%s imports %s: a driver knows the contract, sqlstore and its client only", s.path, imported)
			}
		}
	}
}

func moduleOf(t *testing.T, dir string) string {
	t.Helper()
	best := "."
	for _, m := range modules(t) {
		if m.dir != "" && within(dir, m.dir) && len(m.dir) > len(best) {
			best = m.dir
		}
	}
	return best
}

func TestPackageComments(t *testing.T) {
	commented := map[string][]string{}
	for _, s := range sources(t) {
		if s.test() {
			continue
		}
		files := commented[s.dir]
		if s.file.Doc != nil && s.file.Doc.Text() != "" {
			files = append(files, s.path)
		}
		commented[s.dir] = files
	}
	for dir, files := range commented {
		if len(files) != 1 {
			t.Errorf("package %s has %d package comments %v, want one", dir, len(files), files)
		}
	}
}

func TestExportedIsDocumented(t *testing.T) {
	for _, s := range sources(t) {
		if s.test() {
			continue
		}
		for _, d := range s.file.Decls {
			for _, name := range undocumented(d) {
				t.Errorf("%s: %s is exported and has no comment", s.set.Position(d.Pos()), name)
			}
		}
	}
}

func undocumented(d ast.Decl) []string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		// The methods that make a type a well-known interface need no words.
		wellKnown := d.Recv != nil && slices.Contains([]string{"Error", "String", "Unwrap", "Is", "Len", "Less", "Swap"}, d.Name.Name)
		if d.Name.IsExported() && d.Doc == nil && !wellKnown && (d.Recv == nil || exportedReceiver(d.Recv)) {
			return []string{d.Name.Name}
		}
	case *ast.GenDecl:
		var names []string
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				if spec.Name.IsExported() && d.Doc == nil && spec.Doc == nil && spec.Comment == nil {
					names = append(names, spec.Name.Name)
				}
			case *ast.ValueSpec:
				if spec.Names[0].IsExported() && d.Doc == nil && spec.Doc == nil && spec.Comment == nil {
					names = append(names, spec.Names[0].Name)
				}
			}
		}
		return names
	}
	return nil
}

func exportedReceiver(fields *ast.FieldList) bool {
	exported := false
	ast.Inspect(fields.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && id.IsExported() {
			exported = true
		}
		return true
	})
	return exported
}

// A sleep in a test is a wait for something that nobody can observe, or a mistake. Under synctest it is exact and costs nothing.
func TestSleepsAreExplained(t *testing.T) {
	for _, s := range sources(t) {
		if !s.test() || slices.Contains(s.imports(t), "testing/synctest") {
			continue
		}
		lines := strings.Split(s.text, "\n")
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok || call.Sel.Name != "Sleep" {
				return true
			}
			if x, ok := call.X.(*ast.Ident); !ok || x.Name != "time" {
				return true
			}
			line := s.set.Position(call.Pos()).Line - 1
			if !strings.Contains(lines[line], "//") && !strings.HasPrefix(strings.TrimSpace(lines[line-1]), "//") {
				t.Errorf("%s:%d: time.Sleep in a test without a comment that says why", s.path, line+1)
			}
			return true
		})
	}
}
