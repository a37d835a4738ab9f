//go:build unix

package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
)

// ttl is short for the tests' sake, and long against the pauses of a busy machine.
const ttl = 2 * time.Second

// A site is a store and a directory in which processes of tenure run a worker.
type site struct {
	t     *testing.T
	dir   string
	store string
	name  string // of the election
	runs  []*run
}

// forEachStore runs a test on a fresh store of every kind.
func forEachStore(t *testing.T, test func(*site)) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		test(&site{t: t, dir: dir, store: "sqlite:" + filepath.Join(dir, "store.db"), name: "job"})
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(&site{t: t, dir: t.TempDir(), store: newDatabase(t), name: "job"})
	})
}

// newDatabase creates a database that is dropped at the end of the test, and returns its URL.
func newDatabase(t *testing.T) string {
	t.Helper()
	admin := os.Getenv("TENURE_TEST_POSTGRES")
	if admin == "" {
		t.Skip("TENURE_TEST_POSTGRES is not set: it is the URL of a PostgreSQL server as a superuser, for example postgres://postgres@127.0.0.1:5432/postgres")
	}
	u, err := url.Parse(admin)
	if err != nil {
		t.Fatal("TENURE_TEST_POSTGRES is not a URL")
	}
	db, err := sql.Open("pgx", admin)
	if err != nil {
		t.Fatal("TENURE_TEST_POSTGRES cannot be opened")
	}
	name := "tenure_command_" + strings.ToLower(rand.Text()[:10])
	if _, err := db.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer db.Close()
		if _, err := db.ExecContext(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	u.Path = "/" + name
	return u.String()
}

// A run is a process of tenure.
type run struct {
	*site
	id     string
	cmd    *exec.Cmd
	stderr string // file
	ended  chan struct{}
}

// tenure starts tenure with a store and arguments.
func (s *site) tenure(id string, args ...string) *run {
	s.t.Helper()
	r := &run{site: s, id: id, ended: make(chan struct{}), stderr: filepath.Join(s.dir, id+".stderr")}
	r.cmd = exec.Command("tenure", args...)
	r.cmd.Dir = s.dir
	r.cmd.Env = append(os.Environ(), storeVariable+"="+s.store)
	stderr, err := os.OpenFile(r.stderr, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	stdout, err := os.Create(filepath.Join(s.dir, id+".stdout"))
	if err != nil {
		s.t.Fatal(err)
	}
	r.cmd.Stderr, r.cmd.Stdout = stderr, stdout
	if err := r.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	stderr.Close()
	stdout.Close()
	go func() {
		_ = r.cmd.Wait()
		close(r.ended)
	}()
	s.runs = append(s.runs, r)
	s.t.Cleanup(func() {
		// SIGKILL, and the guardian ends what is left.
		_ = r.cmd.Process.Signal(syscall.SIGCONT)
		_ = r.cmd.Process.Kill()
		<-r.ended
		if s.t.Failed() {
			s.t.Logf("%s:\n%s", id, r.log())
		}
	})
	return r
}

// run starts tenure run with the worker. Flags come before the dash.
func (s *site) run(id string, args ...string) *run {
	s.t.Helper()
	flags, worker := args, []string{}
	for i, arg := range args {
		if arg == "--" {
			flags, worker = args[:i], args[i+1:]
			break
		}
	}
	all := append([]string{"run", s.name, "--id", id, "--ttl", ttl.String(), "--log-level", "debug"}, flags...)
	return s.tenure(id, append(append(all, "--", "worker"), worker...)...)
}

func (r *run) log() string {
	text, _ := os.ReadFile(r.stderr)
	return string(text)
}

func (r *run) signal(sig syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil {
		r.t.Fatal(err)
	}
}

// code waits for the end and returns the exit code.
func (r *run) code() int {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(time.Minute):
		r.t.Fatalf("%s has not ended", r.id)
	}
	return r.cmd.ProcessState.ExitCode()
}

// events returns the lines of the workers' log.
func (s *site) events() []string {
	text, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	if bytes.Contains(text, []byte("OVERLAP")) {
		s.t.Fatalf("two workers ran at once:\n%s", text)
	}
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
}

// starts returns the members and tokens of the workers' starts.
func (s *site) starts() (members []string, tokens []uint64) {
	for _, line := range s.events() {
		var member string
		var token uint64
		if n, _ := fmt.Sscanf(line, "start %s %d", &member, &token); n == 2 {
			members, tokens = append(members, member), append(tokens, token)
		}
	}
	return members, tokens
}

// eventually waits for a condition, generously.
func (s *site) eventually(what string, condition func() bool) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); !condition(); {
		if time.Now().After(end) {
			text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			s.t.Fatalf("not within a minute: %s; the workers' log:\n%s", what, text)
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
}

// started waits until a worker has been started n times in all, and returns the run that did it last. Tokens must have grown.
func (s *site) started(n int) *run {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%d starts", n), func() bool { members, _ := s.starts(); return len(members) >= n })
	members, tokens := s.starts()
	for i := 1; i < len(tokens); i++ {
		if tokens[i] <= tokens[i-1] {
			s.t.Fatalf("token %d came after token %d", tokens[i], tokens[i-1])
		}
	}
	for _, r := range s.runs {
		if r.id == members[n-1] {
			return r
		}
	}
	s.t.Fatalf("unknown member %s", members[n-1])
	return nil
}

func (s *site) happened(event string) func() bool {
	return func() bool {
		for _, line := range s.events() {
			if strings.HasPrefix(line, event+" ") {
				return true
			}
		}
		return false
	}
}

// The main job: it runs on one, and moves when tenure is killed with -9. Its stubborn worker and the worker's child die with it.
func TestMovesWhenKilled(t *testing.T) {
	forEachStore(t, func(s *site) {
		for _, id := range []string{"a", "b", "c"} {
			s.run(id, "--", "-stubborn", "-child")
		}
		for n := 1; n <= 2; n++ {
			s.started(n).signal(syscall.SIGKILL)
		}
		s.started(3)
	})
}

// A tenure that is stopped past its lease: the guardian kills the worker before another starts. Continued, it stands again.
func TestMovesWhenStopped(t *testing.T) {
	forEachStore(t, func(s *site) {
		s.run("a", "--", "-stubborn", "-child")
		s.run("b", "--", "-stubborn", "-child")
		first := s.started(1)
		first.signal(syscall.SIGSTOP)
		second := s.started(2)
		if first == second {
			s.t.Fatalf("%s leads again although it is stopped", first.id)
		}
		first.signal(syscall.SIGCONT)
		s.eventually("the first stands again", func() bool { return strings.Contains(first.log(), "standing again") })
		second.signal(syscall.SIGKILL)
		if third := s.started(3); third != first {
			s.t.Errorf("%s leads, want %s", third.id, first.id)
		}
	})
}

func TestExitOnLoss(t *testing.T) {
	forEachStore(t, func(s *site) {
		r := s.run("a", "--exit-on-loss", "--", "-stubborn")
		s.started(1)
		r.signal(syscall.SIGSTOP)
		// The guardian kills it, so that the lock is free.
		s.eventually("the worker is dead", s.unlocked)
		r.signal(syscall.SIGCONT)
		if code := r.code(); code != codeTemporary {
			s.t.Errorf("exit code %d, want %d", code, codeTemporary)
		}
	})
}

// unlocked reports whether no worker holds the lock.
func (s *site) unlocked() bool {
	lock, err := os.Open(filepath.Join(s.dir, "lock"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer lock.Close()
	return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// The guardian is found through the worker, whose parent it is.
func (s *site) guardian() int {
	s.t.Helper()
	events := s.events()
	var member string
	var token uint64
	var pid int
	if _, err := fmt.Sscanf(events[len(events)-1], "start %s %d %d", &member, &token, &pid); err != nil {
		s.t.Fatal(err)
	}
	parent := parents(s.t)[pid]
	if parent == 0 {
		s.t.Fatalf("the worker %d is not there", pid)
	}
	return parent
}

// parents returns the parent of each process. A small Linux system has no ps; other systems have no /proc.
func parents(t *testing.T) map[int]int {
	t.Helper()
	of := map[int]int{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended meanwhile
		}
		// PID (NAME) STATE PPID …: a name may hold anything.
		var pid, parent int
		var state string
		_, _ = fmt.Sscan(string(text), &pid)
		_, _ = fmt.Sscan(string(text[bytes.LastIndexByte(text, ')')+1:]), &state, &parent)
		of[pid] = parent
	}
	if len(of) > 0 {
		return of
	}
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		var pid, parent int
		_, _ = fmt.Sscan(line, &pid, &parent)
		of[pid] = parent
	}
	return of
}

func TestGuardianKilled(t *testing.T) {
	forEachStore(t, func(s *site) {
		s.run("a", "--", "-stubborn", "-child")
		s.run("b", "--", "-stubborn", "-child")
		first := s.started(1)
		if err := syscall.Kill(s.guardian(), syscall.SIGKILL); err != nil {
			s.t.Fatal(err)
		}
		second := s.started(2)
		s.eventually("the loss of the guardian is reported", func() bool { return strings.Contains(first.log(), "the guardian has died") })
		second.signal(syscall.SIGTERM)
		first.signal(syscall.SIGTERM)
	})
}

// SIGTERM stops the worker, which may put things in order, hands over and exits with the worker's code.
func TestSIGTERM(t *testing.T) {
	forEachStore(t, func(s *site) {
		s.run("a")
		s.run("b")
		first := s.started(1)
		begun := time.Now()
		first.signal(syscall.SIGTERM)
		if code := first.code(); code != 20 {
			s.t.Errorf("exit code %d, want the worker's 20", code)
		}
		second := s.started(2)
		if !s.happened("end")() {
			s.t.Error("the worker was not given the time to end")
		}
		s.t.Logf("moved within %v", time.Since(begun))
		second.signal(syscall.SIGTERM)
		if code := second.code(); code != 20 {
			s.t.Errorf("exit code %d, want the worker's 20", code)
		}
	})
}

func TestGrace(t *testing.T) {
	forEachStore(t, func(s *site) {
		// Longer than the TTL: it leads all the while.
		r := s.run("a", "--grace", "3s", "--", "-stubborn", "-child")
		other := s.run("b", "--", "-stubborn")
		first := s.started(1)
		if first == other {
			r, other = other, r
			s.t.Log("the other leads, whose grace is the default")
		}
		// What was ignored before makes no difference.
		r.signal(syscall.SIGINT)
		s.eventually("the worker was interrupted", s.happened("signal-2"))
		begun := time.Now()
		r.signal(syscall.SIGTERM)
		s.eventually("the worker was told", s.happened("signal-15"))
		if code := r.code(); code != 137 {
			s.t.Errorf("exit code %d, want 137", code)
		}
		if took := time.Since(begun); took < 3*time.Second {
			s.t.Errorf("killed after %v already", took)
		}
		if next := s.started(2); next != other {
			s.t.Errorf("%s leads", next.id)
		}
	})
}

// Signals reach the worker, and end a tenure that has none.
func TestSignals(t *testing.T) {
	forEachStore(t, func(s *site) {
		leader := s.run("a", "--", "-stubborn")
		s.started(1)
		for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGALRM, syscall.SIGWINCH} {
			leader.signal(sig)
			s.eventually(sig.String()+" arrives", s.happened(fmt.Sprintf("signal-%d", int(sig))))
		}
		for sig, want := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130, syscall.SIGHUP: 129, syscall.SIGQUIT: 131} {
			waiting := s.run(fmt.Sprintf("waiting-%d", want))
			s.eventually("it waits", func() bool { return strings.Contains(waiting.log(), `msg="somebody else leads" election=job leader=a`) })
			waiting.signal(syscall.SIGUSR1)
			waiting.signal(sig)
			if code := waiting.code(); code != want {
				s.t.Errorf("%v while waiting: exit code %d, want %d", sig, code, want)
			}
		}
		if members, _ := s.starts(); len(members) != 1 {
			s.t.Errorf("workers were started: %v", members)
		}
	})
}

// A worker that ends leaves a stubborn child behind, which is killed before the next leads.
func TestLeftoversDieBeforeTheNextLeads(t *testing.T) {
	forEachStore(t, func(s *site) {
		first := s.run("a", "--", "-exit", "3", "-child")
		if code := first.code(); code != 3 {
			s.t.Errorf("exit code %d, want 3", code)
		}
		s.run("b")
		s.started(2)
		if !strings.Contains(first.log(), "the command left processes behind: they were killed") {
			s.t.Error("the log does not say so")
		}
	})
}

func TestKeep(t *testing.T) {
	forEachStore(t, func(s *site) {
		r := s.run("a", "--keep", "--", "-exit", "3")
		s.started(3)
		r.signal(syscall.SIGTERM)
		if code := r.code(); code != 143 && code != 3 {
			s.t.Errorf("exit code %d, want 143, or the worker's 3", code)
		}
	})
}

// tenure resign moves the job to the next in line.
func TestResignMoves(t *testing.T) {
	forEachStore(t, func(s *site) {
		first := s.run("a")
		s.started(1)
		second := s.run("b")
		s.eventually("b stands", func() bool { return strings.Contains(second.log(), "somebody else leads") })
		resign := s.tenure("resign", "resign", s.name)
		if code := resign.code(); code != 0 {
			s.t.Fatalf("exit code %d", code)
		}
		out, _ := os.ReadFile(filepath.Join(s.dir, "resign.stdout"))
		if !strings.HasPrefix(string(out), "job was led by a with token ") || !strings.Contains(string(out), "; now b leads with token ") {
			s.t.Errorf("%s", out)
		}
		if moved := s.started(2); moved != second {
			s.t.Errorf("%s leads", moved.id)
		}
		second.signal(syscall.SIGTERM)
		second.code()
		if moved := s.started(3); moved != first {
			s.t.Errorf("%s leads, want the first, which stands again", moved.id)
		}
	})
}
