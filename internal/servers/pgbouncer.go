package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// A PgBouncer is a pooler in transaction mode in front of a PostgreSQL server. It knows the superuser's password only. Its methods
// are not for concurrent use.
type PgBouncer struct {
	program, dir, password string
	port                   int
	running                *process
}

// PgBouncerProgram returns the path of the pooler's program.
func PgBouncerProgram() (string, error) {
	// Debian puts it where the PATH of an ordinary user does not look.
	const debian = "/usr/sbin/pgbouncer"
	if _, err := os.Stat(debian); err == nil {
		return debian, nil
	}
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		return "", fmt.Errorf("no PgBouncer at %s and in PATH: install it: %w", debian, err)
	}
	return path, nil
}

// StartPgBouncer starts a pooler in front of a server. It runs until Close; ctx bounds the start only.
func StartPgBouncer(ctx context.Context, behind *Postgres) (*PgBouncer, error) {
	if !supported {
		return nil, ErrUnsupported
	}
	program, err := PgBouncerProgram()
	if err != nil {
		return nil, err
	}
	dir, err := newDir("pgbouncer")
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{program: program, dir: dir, password: behind.password}
	// Another process may take the port between the look and the start.
	for try := 0; ; try++ {
		if err = b.configure(behind.port); err == nil {
			err = b.Start(ctx)
		}
		if err == nil {
			return b, nil
		}
		if try == 2 || ctx.Err() != nil {
			return nil, errors.Join(err, b.Close())
		}
	}
}

func (b *PgBouncer) configure(serverPort int) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	b.port = port
	users := filepath.Join(b.dir, "users")
	if err := writeFile(users, fmt.Sprintf("\"postgres\" %q\n", b.password)); err != nil {
		return err
	}
	return writeFile(b.config(), fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = scram-sha-256
auth_file = %s
pool_mode = transaction
default_pool_size = 20
max_client_conn = 1000
ignore_startup_parameters = extra_float_digits
`, serverPort, b.port, users))
}

func (b *PgBouncer) config() string { return filepath.Join(b.dir, "pgbouncer.ini") }

// Addr returns the pooler's host and port.
func (b *PgBouncer) Addr() string { return loopback(b.port) }

// URL returns the URL of the database postgres for the superuser by way of the pooler, password included.
func (b *PgBouncer) URL() string { return postgresURL(b.password, b.Addr()) }

// Start starts the pooler on the port that it had before, and waits until it accepts connections.
func (b *PgBouncer) Start(ctx context.Context) error {
	if b.running != nil && !b.running.ended() {
		return errors.New("PgBouncer runs already: stop or kill it first")
	}
	p, err := start(b.dir, syscall.SIGTERM, b.program, b.config())
	if err != nil {
		return err
	}
	b.running = p
	return p.waitReady(ctx, func() error { return probePostgres(b.Addr()) })
}

// Kill ends the pooler at once with SIGKILL.
func (b *PgBouncer) Kill() {
	if b.running != nil {
		b.running.kill()
	}
}

// Log returns the last lines that the pooler printed.
func (b *PgBouncer) Log() string { return logTail(filepath.Join(b.dir, "log")) }

// Close ends the pooler and removes its files.
func (b *PgBouncer) Close() error {
	b.Kill()
	return os.RemoveAll(b.dir)
}
