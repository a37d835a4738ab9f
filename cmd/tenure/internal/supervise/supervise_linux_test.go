package supervise

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// parentArg is the first argument with which the test binary plays tenure.
const parentArg = "__parent"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case GuardianArg:
			os.Exit(Guard(os.Args[2:]))
		case parentArg:
			os.Exit(parent(os.Args[2], os.Args[3:]))
		}
	}
	os.Exit(m.Run())
}

// parent supervises a command, extending its deadlines to lease from now until it ends, and prints what becomes of it.
func parent(lease string, command []string) int {
	d, err := time.ParseDuration(lease)
	if err != nil {
		panic(err)
	}
	until := func() Deadlines {
		return Deadlines{Term: time.Now().Add(d), Kill: time.Now().Add(d + d/4)}
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		panic(err)
	}
	p, err := Start(Command{Path: path, Args: command, Env: os.Environ(), Files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}}, until(), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		panic(err)
	}
	fmt.Println("started", p.Pid(), p.guardian)
	tick := time.NewTicker(d / 20)
	for {
		select {
		case <-tick.C:
			p.Extend(until())
		case <-p.Done():
			fmt.Println("done", p.Exit().Code, p.Err())
			return 0
		}
	}
}

// A family is a parent process with its guardian, its command and what that has started, all of which have the same mark in
// their environment.
type family struct {
	t        *testing.T
	cmd      *exec.Cmd
	out      *bufio.Reader
	log      string // the file of its standard error
	mark     string
	pid      int // the command's
	guardian int
}

func start(t *testing.T, lease time.Duration, command ...string) *family {
	t.Helper()
	f := &family{t: t, mark: "TENURE_TEST_MARK=" + rand.Text()}
	f.cmd = exec.Command(os.Args[0], append([]string{parentArg, lease.String()}, command...)...)
	f.cmd.Env = append(os.Environ(), f.mark)
	f.log = filepath.Join(t.TempDir(), "log")
	log, err := os.Create(f.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	f.cmd.Stderr = log
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, pid := range f.alive() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = f.cmd.Wait()
		if log, err := os.ReadFile(f.log); err == nil && t.Failed() {
			t.Logf("standard error:\n%s", log)
		}
	})
	f.out = bufio.NewReader(out)
	if _, err := fmt.Sscanf(f.line(), "started %d %d", &f.pid, &f.guardian); err != nil {
		t.Fatal(err)
	}
	return f
}

// line reads a line of the parent's output.
func (f *family) line() string {
	f.t.Helper()
	line, err := f.out.ReadString('\n')
	if err != nil {
		f.t.Fatalf("output ended: %v", err)
	}
	return strings.TrimSpace(line)
}

// alive returns the marked processes.
func (f *family) alive() []int {
	var pids []int
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		env, err := os.ReadFile(file)
		if err == nil && bytes.Contains(env, []byte(f.mark)) {
			pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

// command returns the marked processes but the parent and the guardian.
func (f *family) command() int {
	n := 0
	for _, pid := range f.alive() {
		if pid != f.cmd.Process.Pid && pid != f.guardian {
			n++
		}
	}
	return n
}

func (f *family) kill(pid int, sig syscall.Signal) {
	f.t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		f.t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !condition(); {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond) // between two looks
	}
}

// stubborn starts a shell that ignores SIGTERM, with a child in its group and one in a session of its own, and waits for all three.
func stubborn(t *testing.T, lease time.Duration) *family {
	f := start(t, lease, "sh", "-c", `trap "" TERM HUP INT; sleep 1001 & setsid sleep 1002 & while :; do sleep 1003; done`)
	eventually(t, "four processes run", func() bool { return f.command() >= 4 })
	return f
}

func TestExitCodes(t *testing.T) {
	for script, want := range map[string]string{
		"exit 0":        "done 0 <nil>",
		"exit 7":        "done 7 <nil>",
		"kill -TERM $$": "done 143 <nil>",
		"kill -KILL $$": "done 137 <nil>",
	} {
		f := start(t, time.Minute, "sh", "-c", script)
		if got := f.line(); got != want {
			t.Errorf("%s: %s, want %s", script, got, want)
		}
	}
}

func TestLeftoversAreKilled(t *testing.T) {
	f := start(t, time.Minute, "sh", "-c", `trap "" TERM; sleep 1001 & setsid sleep 1002 & (setsid sh -c "sleep 1003; :" &) ; exit 3`)
	if got := f.line(); got != "done 3 <nil>" {
		t.Error(got)
	}
	if n := f.command(); n != 0 {
		t.Errorf("%d processes survived: %v", n, f.alive())
	}
}

func TestExtend(t *testing.T) {
	f := start(t, 2*time.Second, "sh", "-c", "sleep 5; exit 4")
	if got := f.line(); got != "done 4 <nil>" {
		t.Errorf("%s: the command should have outlived its first deadline", got)
	}
}

func TestParentKilled(t *testing.T) {
	f := stubborn(t, time.Hour)
	f.kill(f.cmd.Process.Pid, syscall.SIGKILL)
	eventually(t, "all are dead", func() bool { return f.command() == 0 })
}

func TestParentStopped(t *testing.T) {
	f := stubborn(t, 2*time.Second)
	f.kill(f.cmd.Process.Pid, syscall.SIGSTOP)
	eventually(t, "all are dead", func() bool { return f.command() == 0 })
	f.kill(f.cmd.Process.Pid, syscall.SIGCONT)
	if got, want := f.line(), "done 137 "+errExpired.Error(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestParentStoppedPoliteCommand(t *testing.T) {
	f := start(t, 2*time.Second, "sh", "-c", `trap "exit 5" TERM; while :; do sleep 0.05; done`)
	f.kill(f.cmd.Process.Pid, syscall.SIGSTOP)
	eventually(t, "it is dead", func() bool { return f.command() == 0 })
	f.kill(f.cmd.Process.Pid, syscall.SIGCONT)
	if got, want := f.line(), "done 5 "+errExpired.Error(); got != want {
		t.Errorf("%q, want %q: SIGTERM comes before SIGKILL", got, want)
	}
}

func TestGuardianKilled(t *testing.T) {
	f := stubborn(t, time.Hour)
	f.kill(f.guardian, syscall.SIGKILL)
	if got, want := f.line(), "done 137 "+errGuardian.Error(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if n := f.command(); n != 0 {
		t.Errorf("%d processes survived: %v", n, f.alive())
	}
}

func TestGuardianStopped(t *testing.T) {
	f := stubborn(t, 2*time.Second)
	for n := range 3 {
		f.kill(f.guardian, syscall.SIGSTOP)
		eventually(t, "the guardian is continued", func() bool {
			log, err := os.ReadFile(f.log)
			return err == nil && bytes.Count(log, []byte("continuing it")) > n
		})
	}
	f.kill(f.cmd.Process.Pid, syscall.SIGSTOP)
	eventually(t, "all are dead", func() bool { return f.command() == 0 })
}

func TestGuardianOutlivesASignalToAll(t *testing.T) {
	f := stubborn(t, time.Hour)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		f.kill(f.guardian, sig)
	}
	f.kill(f.cmd.Process.Pid, syscall.SIGKILL)
	eventually(t, "all are dead", func() bool { return f.command() == 0 })
}

// When both are killed at once, the kernel still ends the command itself.
func TestParentAndGuardianKilled(t *testing.T) {
	f := start(t, time.Hour, "sleep", "1001")
	f.kill(f.cmd.Process.Pid, syscall.SIGSTOP)
	f.kill(f.guardian, syscall.SIGKILL)
	f.kill(f.cmd.Process.Pid, syscall.SIGKILL)
	eventually(t, "all are dead", func() bool { return f.command() == 0 })
}

func TestStop(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	begin := func(script string) *Process {
		t.Helper()
		far := time.Now().Add(time.Hour)
		p, err := Start(Command{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: os.Environ(), Files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}}, Deadlines{far, far}, log)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	ready := filepath.Join(t.TempDir(), "ready")
	trap := func(action string) string {
		_ = os.Remove(ready)
		return fmt.Sprintf(`trap %q TERM; : > %s; while :; do sleep 0.05; done`, action, ready)
	}
	isReady := func() bool { _, err := os.Stat(ready); return err == nil }

	p := begin(trap("exit 9"))
	eventually(t, "the trap is set", isReady)
	p.Stop(time.Now().Add(time.Hour))
	<-p.Done()
	if p.Exit().Code != 9 || p.Err() != nil {
		t.Errorf("Stop: %+v, %v", p.Exit(), p.Err())
	}
	p = begin(trap(""))
	eventually(t, "the trap is set", isReady)
	p.Stop(time.Now().Add(200 * time.Millisecond))
	<-p.Done()
	if p.Exit() != (Exit{Code: 137, Signal: 9}) || p.Err() != nil {
		t.Errorf("Stop of a command that ignores SIGTERM: %+v, %v", p.Exit(), p.Err())
	}
	p = begin(trap("exit 9"))
	eventually(t, "the trap is set", isReady)
	p.Kill()
	<-p.Done()
	if p.Exit().Signal != 9 {
		t.Errorf("Kill: %+v", p.Exit())
	}
	p = begin(`kill -STOP $$; exit 6`)
	p.Stop(time.Now().Add(time.Hour))
	<-p.Done()
	if p.Exit().Signal != 15 {
		t.Errorf("Stop of a stopped command: %+v", p.Exit())
	}
}

func TestStartError(t *testing.T) {
	far := time.Now().Add(time.Hour)
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("not a program"), 0o700); err != nil {
		t.Fatal(err)
	}
	for path, code := range map[string]int{"/nonexistent": 127, text: 126} {
		_, err := Start(Command{Path: path, Args: []string{path}, Files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}}, Deadlines{far, far}, slog.New(slog.DiscardHandler))
		var start *StartError
		if !errors.As(err, &start) || start.Code != code || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want code %d", path, err, code)
		}
	}
}

// A time that was reckoned before the machine slept comes sooner than this process's clock says.
func TestTranslateAfterSleep(t *testing.T) {
	tr := newTranslator()
	made := time.Now()
	at := made.Add(10 * time.Second)
	if d := tr.translate(at, made) - clock(); d < 9*time.Second || d > 10*time.Second+time.Millisecond {
		t.Errorf("awake: %v ahead", d)
	}
	slept := func() time.Duration { return clock() + 8*time.Second }
	tr.clock = slept
	if d := tr.translate(at, made) - slept(); d < time.Second || d > 2*time.Second+time.Millisecond {
		t.Errorf("reckoned before the sleep: %v ahead", d)
	}
	now := time.Now()
	if d := tr.translate(now.Add(10*time.Second), now) - slept(); d < 9*time.Second || d > 10*time.Second+time.Millisecond {
		t.Errorf("reckoned after the sleep: %v ahead", d)
	}
}
