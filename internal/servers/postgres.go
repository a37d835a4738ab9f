package servers

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// A Postgres is a PostgreSQL server with one superuser, postgres, who logs in with a password (SCRAM), so that whatever might
// show a password has one to show. Its methods are not for concurrent use.
type Postgres struct {
	bin, dir, password string
	port               int
	settings           []string
	running            *process
}

// PostgresBin returns the directory that has PostgreSQL's programs, the newest version's when there are several. It looks where
// TENURE_TEST_POSTGRES_BIN points, where Debian puts them, and in PATH.
func PostgresBin() (string, error) {
	if dir := os.Getenv("TENURE_TEST_POSTGRES_BIN"); dir != "" {
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
			return "", fmt.Errorf("TENURE_TEST_POSTGRES_BIN %q has no initdb: point it to the directory of PostgreSQL's programs: %w", dir, err)
		}
		return dir, nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", err
	}
	if len(found) > 0 {
		newest := slices.MaxFunc(found, func(a, b string) int { return versionIn(a) - versionIn(b) })
		return filepath.Dir(newest), nil
	}
	initdb, err := exec.LookPath("initdb")
	if err != nil {
		return "", fmt.Errorf("no PostgreSQL in /usr/lib/postgresql and PATH: install it or set TENURE_TEST_POSTGRES_BIN: %w", err)
	}
	return filepath.Dir(initdb), nil
}

// versionIn returns the version in /usr/lib/postgresql/VERSION/bin/initdb, 0 when it is no number.
func versionIn(path string) int {
	v, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
	if err != nil {
		return 0
	}
	return v
}

// StartPostgres makes a new database cluster and starts a server on it. A setting is as in postgresql.conf: "fsync=off". The server
// runs until Close; ctx bounds the start only.
func StartPostgres(ctx context.Context, settings ...string) (*Postgres, error) {
	if !supported {
		return nil, ErrUnsupported
	}
	bin, err := PostgresBin()
	if err != nil {
		return nil, err
	}
	dir, err := newDir("postgres")
	if err != nil {
		return nil, err
	}
	s := &Postgres{bin: bin, dir: dir, password: rand.Text(), settings: settings}
	if err := s.create(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	// Another process may take the port between the look and the start.
	for try := 0; ; try++ {
		if s.port, err = freePort(); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		if err = s.Start(ctx); err == nil {
			return s, nil
		}
		if try == 2 || ctx.Err() != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
}

func (s *Postgres) create() error {
	passwordFile := filepath.Join(s.dir, "password")
	if err := writeFile(passwordFile, s.password+"\n"); err != nil {
		return err
	}
	return runIn(s.dir, filepath.Join(s.bin, "initdb"), "--pgdata="+s.data(), "--username=postgres", "--pwfile="+passwordFile,
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync")
}

func (s *Postgres) data() string { return filepath.Join(s.dir, "data") }

// Addr returns the server's host and port.
func (s *Postgres) Addr() string { return loopback(s.port) }

// URL returns the URL of the database postgres for the superuser, password included.
func (s *Postgres) URL() string { return postgresURL(s.password, s.Addr()) }

func postgresURL(password, addr string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword("postgres", password), Host: addr, Path: "/postgres",
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Bin returns the directory that has the server's programs.
func (s *Postgres) Bin() string { return s.bin }

// Start starts the server, on the port and with the data that it had before, and waits until it accepts connections.
func (s *Postgres) Start(ctx context.Context) error {
	if s.running != nil && !s.running.ended() {
		return errors.New("PostgreSQL runs already: stop or kill it first")
	}
	args := []string{"-D", s.data(), "-h", "127.0.0.1", "-p", strconv.Itoa(s.port), "-k", ""}
	for _, setting := range s.settings {
		args = append(args, "-c", setting)
	}
	// SIGQUIT is PostgreSQL's immediate shutdown.
	p, err := start(s.dir, syscall.SIGQUIT, filepath.Join(s.bin, "postgres"), args...)
	if err != nil {
		return err
	}
	s.running = p
	return p.waitReady(ctx, func() error { return probePostgres(s.Addr()) })
}

// Stop shuts the server down as an operator would, ending all connections, and waits for its end.
func (s *Postgres) Stop() {
	if s.running != nil {
		s.running.stop(syscall.SIGINT)
	}
}

// Kill ends all processes of the server at once with SIGKILL. What was committed is there at the next Start.
func (s *Postgres) Kill() {
	if s.running != nil {
		s.running.kill()
	}
}

// Pause stops all processes of a running server with SIGSTOP: its connections stay open and nothing answers.
func (s *Postgres) Pause() { pauseTree(s.running.cmd.Process.Pid) }

// Resume lets a paused server go on. It has no effect on one that is not paused.
func (s *Postgres) Resume() { resumeTree(s.running.cmd.Process.Pid) }

// Log returns the last lines that the server printed.
func (s *Postgres) Log() string { return logTail(filepath.Join(s.dir, "log")) }

// Close ends the server, paused or not, and removes its data.
func (s *Postgres) Close() error {
	if s.running != nil && !s.running.ended() {
		// An immediate shutdown rather than SIGKILL, so that the server's children have a parent that waits for them.
		s.Resume()
		s.running.stop(syscall.SIGQUIT)
	}
	return os.RemoveAll(s.dir)
}

// probePostgres asks for a connection as far as the server's request for a password.
func probePostgres(addr string) error {
	const protocol3 = 3 << 16
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing of it is needed any more
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	body := "user\x00postgres\x00database\x00postgres\x00\x00"
	hello := binary.BigEndian.AppendUint32(nil, uint32(8+len(body)))
	hello = binary.BigEndian.AppendUint32(hello, protocol3)
	if _, err := conn.Write(append(hello, body...)); err != nil {
		return err
	}
	var kind [1]byte
	if _, err := io.ReadFull(conn, kind[:]); err != nil {
		return err
	}
	if kind[0] != 'R' {
		return fmt.Errorf("%s answered %q instead of asking for a password: it is still starting", addr, kind)
	}
	return nil
}
