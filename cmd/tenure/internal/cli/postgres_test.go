//go:build unix

package cli

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gotenure/tenure/internal/testserver"
)

// The commands that treat PostgreSQL in a way of its own.
func TestPostgresCommands(t *testing.T) {
	s := &site{t: t, dir: t.TempDir(), store: newDatabase(t)}
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
	u, err := url.Parse(s.store)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("schema", "offices")
	query.Set("create", "false")
	u.RawQuery = query.Encode()
	s.store = u.String()

	check("missing", codeConfig, "tenure store init", "status")
	check("no guard yet", codeConfig, "create it with `tenure store init`, or", "fence", "table", "1", "--", "true")
	check("schema", 0, "offices", "store", "schema")
	check("init", 0, "is ready", "store", "init")
	check("init again", 0, "is ready", "store", "init")
	check("status", 0, "No elections", "status")
	check("fence", 0, "hello", "fence", "table", "7", "--", "echo", "hello")
	check("stale", codeRefused, `stale token 6: resource "table" has seen token 7`, "fence", "table", "6", "--", "echo", "hello")

	u.User = url.UserPassword("nobody", "s3cret")
	s.store = u.String()
	check("login", codeUnavailable, "nobody:xxxxx@", "status")
	if log, _ := os.ReadFile(filepath.Join(s.dir, "login.stderr")); strings.Contains(string(log), "s3cret") {
		t.Errorf("the password is shown: %s", log)
	}
}

// A pooler in transaction mode shares a server's connection between commands. None may leave anything behind on it.
func TestFenceBehindPooler(t *testing.T) {
	s := &site{t: t, dir: t.TempDir(), store: newDatabase(t)}
	pooler, err := url.Parse(testserver.PgBouncerURL(t))
	if err != nil {
		t.Fatal(err)
	}
	database, err := url.Parse(s.store)
	if err != nil {
		t.Fatal(err)
	}
	pooler.Path = database.Path
	s.store = pooler.String()
	for i, args := range [][]string{{"store", "init"}, {"fence", "r", "1", "--", "true"}, {"fence", "r", "2", "--", "true"}, {"fence", "r", "2", "--", "true"}} {
		r := s.tenure(fmt.Sprint("c", i), args...)
		if code := r.code(); code != 0 {
			t.Errorf("%v: exit code %d: %s", args, code, r.log())
		}
	}
}
