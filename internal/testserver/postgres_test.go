package testserver

import (
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gotenure/tenure/internal/servers"
)

func query(t *testing.T, url, statement string) string {
	t.Helper()
	bin, err := servers.PostgresBin()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(bin, "psql"), "-X", "-v", "ON_ERROR_STOP=1", "-Atc", statement, url).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", statement, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestPostgresKeepsDataAndPort(t *testing.T) {
	p := StartPostgres(t)
	url := p.URL()
	query(t, url, "CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)")
	p.Restart()
	query(t, url, "INSERT INTO kept VALUES (2)")
	p.Kill()
	if c, err := net.Dial("tcp", p.Addr()); err == nil {
		_ = c.Close()
		t.Fatal("connected to a killed server")
	}
	p.Start()
	if got := query(t, url, "SELECT sum(n) FROM kept"); got != "3" {
		t.Fatalf("sum %s after a restart and a kill, want 3", got)
	}
}

func TestPostgresPauseHoldsAllProcesses(t *testing.T) {
	p := StartPostgres(t)
	bin, err := servers.PostgresBin()
	if err != nil {
		t.Fatal(err)
	}
	// A backend that is connected before the pause is a child, in a session of its own.
	cmd := exec.Command(filepath.Join(bin, "psql"), "-X", "-At", p.URL())
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		return query(t, p.URL(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'psql'") == "2"
	})
	p.Pause()
	if _, err := in.Write([]byte("SELECT 42;\n")); err != nil {
		t.Fatal(err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		t.Fatalf("a paused server answered %q, %v", out.String(), err)
	case <-time.After(200 * time.Millisecond):
	}
	p.Resume()
	select {
	case err := <-ended:
		if err != nil || out.String() != "42\n" {
			t.Fatalf("after the pause: %q, %v; want 42", out.String(), err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("no answer after the pause")
	}
}

func TestPgBouncer(t *testing.T) {
	b := StartPgBouncer(t, StartPostgres(t))
	if got := query(t, b.URL(), "SELECT 7"); got != "7" {
		t.Fatalf("got %s, want 7", got)
	}
	b.Kill()
	b.Start()
	if got := query(t, b.URL(), "SELECT 8"); got != "8" {
		t.Fatalf("got %s, want 8", got)
	}
}

func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	end := time.Now().Add(30 * time.Second)
	for !condition() {
		if time.Now().After(end) {
			t.Fatal("waited 30s in vain")
		}
		time.Sleep(10 * time.Millisecond) // between two looks at another process
	}
}
