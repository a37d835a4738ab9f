package sqlite_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/sqlite"
)

func TestParseURL(t *testing.T) {
	for _, c := range []struct {
		url, path string
		opts      sqlite.Options
	}{
		{url: "sqlite:///var/lib/app/tenure.db", path: "/var/lib/app/tenure.db"},
		{url: "sqlite:/var/lib/tenure.db", path: "/var/lib/tenure.db"},
		{url: "sqlite:tenure.db", path: "tenure.db"},
		{url: "sqlite:../a%20b/te%3Fnure.db?create=no", path: "../a b/te?nure.db", opts: sqlite.Options{NoCreate: true}},
		{url: "sqlite:///a%25b.db?network=allow&create=yes", path: "/a%b.db", opts: sqlite.Options{AllowNetwork: true}},
		{url: "sqlite:///a.db?network=refuse", path: "/a.db"},
	} {
		path, opts, err := sqlite.ParseURL(c.url)
		if err != nil || path != filepath.FromSlash(c.path) || opts != c.opts {
			t.Errorf("ParseURL(%q) = %q, %+v, %v; want %q, %+v", c.url, path, opts, err, c.path, c.opts)
		}
	}
}

func TestParseURLRefuses(t *testing.T) {
	for url, parts := range map[string][]string{
		"postgres:///x":                   {"postgres", "sqlite"},
		"tenure.db":                       {"scheme"},
		"sqlite:":                         {"names no file", "sqlite:///"},
		"sqlite:///":                      {"names no file"},
		"sqlite:///var/lib/":              {"directory"},
		"sqlite://var/lib/t.db":           {"machine", "sqlite:///var/lib/t.db", "sqlite:var/lib/t.db"},
		"sqlite:///t.db?timeout=3":        {"timeout", "create", "network"},
		"sqlite:///t.db?create=maybe":     {"create", "maybe", "yes or no"},
		"sqlite:///t.db?create=no&create": {"create"},
		"sqlite:///t.db?network=1":        {"allow or refuse"},
		"sqlite:///t.db#x":                {"fragment", "%23"},
		"sqlite:t%zz.db":                  {"%zz"},
		"sqlite:///t.db?a;b=c":            {"name=value"},
		"sqlite:///t%00.db":               {"zero byte"},
	} {
		_, _, err := sqlite.ParseURL(url)
		if !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("ParseURL(%q): %v; want ErrInvalid", url, err)
			continue
		}
		for _, part := range append(parts, url) {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("ParseURL(%q): %q; want it to mention %q", url, err, part)
			}
		}
		if store, err := sqlite.Open(context.Background(), url); err == nil {
			store.Close()
			t.Errorf("Open(%q) succeeds", url)
		}
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	// What is special in a URL or to SQLite is nothing special in a path.
	for url, path := range map[string]string{
		"sqlite:rel%20ative%3Fmode=ro%23.db":                 "rel ative?mode=ro#.db",
		"sqlite:file:x.db":                                   "file:x.db",
		"sqlite:%25.db":                                      "%.db",
		"sqlite://" + filepath.ToSlash(dir) + "/absolute.db": "absolute.db",
	} {
		store, err := sqlite.Open(context.Background(), url)
		if err != nil {
			t.Fatalf("Open(%q): %v", url, err)
		}
		if _, err := os.Stat(filepath.Join(dir, path)); err != nil {
			t.Errorf("Open(%q): %v", url, err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
		// Nothing but the file itself stays.
		if left, err := filepath.Glob(filepath.Join(dir, "*-*")); err != nil || len(left) > 0 {
			t.Errorf("after Close of %q there are %q, %v", url, left, err)
		}
	}
}

func TestDefaultPath(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("USERPROFILE", home)
	for state, want := range map[string]string{
		"":                             filepath.Join(home, ".local", "state", "tenure", "tenure.db"),
		"not/absolute":                 filepath.Join(home, ".local", "state", "tenure", "tenure.db"),
		filepath.Join(home, "state 2"): filepath.Join(home, "state 2", "tenure", "tenure.db"),
	} {
		t.Setenv("XDG_STATE_HOME", state)
		for range 2 { // the directory exists the second time
			path, err := sqlite.DefaultPath()
			if err != nil || path != want {
				t.Errorf("DefaultPath with XDG_STATE_HOME=%q = %q, %v; want %q", state, path, err, want)
			}
		}
		store, err := sqlite.New(context.Background(), want, sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		checkModes(t, want)
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}
