//go:build unix

package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A watch of a file that is not there yet makes none, and sees what begins in it once it is.
func TestWatchBeforeTheFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "store.db")
	s := &site{t: t, dir: dir, store: "sqlite:" + file, name: "job"}
	one, all := s.tenure("one", "watch", "job"), s.tenure("all", "watch", "-o", "json")
	output := func(id string) string {
		out, _ := os.ReadFile(filepath.Join(dir, id+".stdout"))
		return string(out)
	}
	s.eventually("the election is vacant", func() bool { return strings.Contains(output("one"), "job  vacant  (as found)") })
	if !noFile(file) {
		t.Error("the watch has made the file")
	}
	s.run("a")
	s.eventually("both tell of the leader", func() bool {
		return strings.Contains(output("one"), "job  led by a") && strings.Contains(output("all"), `"leader":"a"`)
	})
	if n := strings.Count(output("one"), "job  vacant"); n != 1 {
		t.Errorf("vacant %d times:\n%s", n, output("one"))
	}
	for _, r := range []*run{one, all} {
		r.signal(syscall.SIGINT)
		if code := r.code(); code != 130 {
			t.Errorf("exit code %d after SIGINT, want 130", code)
		}
	}
}

func TestWatch(t *testing.T) {
	forEachStore(t, func(s *site) {
		text := s.tenure("watch", "watch", s.name)
		objects := s.tenure("watch-json", "watch", "-o", "json") // all elections
		r := s.run("a", "--value", `"here"`)
		s.started(1)
		output := func(id string) string {
			out, _ := os.ReadFile(filepath.Join(s.dir, id+".stdout"))
			return string(out)
		}
		s.eventually("both tell of the leader", func() bool {
			return strings.Contains(output("watch"), "job  led by a") && strings.Contains(output("watch-json"), `"leader":"a"`)
		})
		r.signal(syscall.SIGTERM)
		s.eventually("both tell of the vacancy", func() bool {
			return strings.Contains(output("watch"), "a has resigned or its lease has lapsed") && strings.Contains(output("watch-json"), `"why":"a has resigned or its lease has lapsed"`)
		})
		var last struct {
			State, Leader, Election string
			Token                   uint64
		}
		for line := range strings.Lines(output("watch-json")) {
			if err := json.Unmarshal([]byte(line), &last); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
		if last.State != "vacant" || last.Election != "job" || last.Leader != "" || last.Token == 0 {
			t.Errorf("the last line is %+v", last)
		}
		text.signal(syscall.SIGINT)
		objects.signal(syscall.SIGTERM)
		if code := text.code(); code != 130 {
			t.Errorf("exit code %d after SIGINT, want 130", code)
		}
		if code := objects.code(); code != 143 {
			t.Errorf("exit code %d after SIGTERM, want 143", code)
		}
	})
}
