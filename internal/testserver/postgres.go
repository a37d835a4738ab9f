package testserver

import (
	"testing"

	"github.com/gotenure/tenure/internal/servers"
)

// A Postgres is a PostgreSQL server of one test's own, to crash and to stop. Its methods are called from the test's goroutine, and
// end the test when they fail.
type Postgres struct {
	t      testing.TB
	server *servers.Postgres
}

// StartPostgres starts a server that runs until the test ends. Without PostgreSQL on the machine the test is skipped. A setting is
// as in postgresql.conf: "max_connections=20". The server does not wait for the disk, so it keeps what was committed when it is
// killed, but not when the machine is.
func StartPostgres(t testing.TB, settings ...string) *Postgres {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a PostgreSQL server: run it without -short")
	}
	if _, err := servers.PostgresBin(); err != nil {
		t.Skip(err)
	}
	s, err := servers.StartPostgres(t.Context(), append([]string{"fsync=off", "shared_buffers=16MB"}, settings...)...)
	if err != nil {
		t.Fatalf("start PostgreSQL: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of PostgreSQL's log:\n%s", s.Log())
		}
		if err := s.Close(); err != nil {
			t.Errorf("remove PostgreSQL: %v", err)
		}
	})
	return &Postgres{t: t, server: s}
}

// URL returns the URL of the database postgres for the superuser, password included.
func (p *Postgres) URL() string { return p.server.URL() }

// Addr returns the server's host and port, which outlive a restart.
func (p *Postgres) Addr() string { return p.server.Addr() }

// Stop shuts the server down as an operator would, and returns when it has ended.
func (p *Postgres) Stop() { p.server.Stop() }

// Kill ends all processes of the server at once with SIGKILL.
func (p *Postgres) Kill() { p.server.Kill() }

// Start starts the server again after Stop or Kill, with the data that it had, and returns when it accepts connections.
func (p *Postgres) Start() {
	p.t.Helper()
	if err := p.server.Start(p.t.Context()); err != nil {
		p.t.Fatalf("start PostgreSQL again: %v", err)
	}
}

// Restart is Stop and Start.
func (p *Postgres) Restart() {
	p.t.Helper()
	p.Stop()
	p.Start()
}

// Pause stops all processes of the server with SIGSTOP: connections stay open and nothing answers until Resume.
func (p *Postgres) Pause() { p.server.Pause() }

// Resume lets a paused server go on.
func (p *Postgres) Resume() { p.server.Resume() }

// A PgBouncer is a pooler in transaction mode of one test's own. Its methods are called from the test's goroutine, and end the test
// when they fail.
type PgBouncer struct {
	t      testing.TB
	server *servers.PgBouncer
}

// StartPgBouncer starts a pooler in front of a test's server; it runs until the test ends. Without PgBouncer on the machine the test
// is skipped.
func StartPgBouncer(t testing.TB, behind *Postgres) *PgBouncer {
	t.Helper()
	if _, err := servers.PgBouncerProgram(); err != nil {
		t.Skip(err)
	}
	s, err := servers.StartPgBouncer(t.Context(), behind.server)
	if err != nil {
		t.Fatalf("start PgBouncer: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of PgBouncer's log:\n%s", s.Log())
		}
		if err := s.Close(); err != nil {
			t.Errorf("remove PgBouncer: %v", err)
		}
	})
	return &PgBouncer{t: t, server: s}
}

// URL returns the URL of the database postgres for the superuser by way of the pooler, password included.
func (b *PgBouncer) URL() string { return b.server.URL() }

// Kill ends the pooler at once with SIGKILL.
func (b *PgBouncer) Kill() { b.server.Kill() }

// Start starts the pooler again after Kill, and returns when it accepts connections.
func (b *PgBouncer) Start() {
	b.t.Helper()
	if err := b.server.Start(b.t.Context()); err != nil {
		b.t.Fatalf("start PgBouncer again: %v", err)
	}
}
