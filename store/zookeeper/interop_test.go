package zookeeper_test

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/internal/testserver"
)

// curator returns the class path of the program in test/curator, which stands for leader with Apache Curator. It is built once, with Maven, and kept in the
// user's cache directory.
var curator = sync.OnceValues(func() (classPath string, err error) {
	for _, program := range []string{"mvn", "javac"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf("run go run ./dev/servers install: %w", err)
		}
	}
	source := filepath.Join("..", "..", "test", "curator")
	sum := sha256.New()
	files := make(map[string][]byte)
	for _, name := range []string{"pom.xml", "Latch.java"} {
		if files[name], err = os.ReadFile(filepath.Join(source, name)); err != nil {
			return "", err
		}
		sum.Write(files[name])
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "tenure", "servers")
	dir := filepath.Join(cache, fmt.Sprintf("curator-%x", sum.Sum(nil)[:8]))
	classPath = filepath.Join(dir, "classes") + ":" + filepath.Join(dir, "lib", "*")
	if _, err := os.Stat(dir); err == nil {
		return classPath, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(cache, "build-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(work, name), text, 0o600); err != nil {
			return "", err
		}
	}
	for _, command := range [][]string{
		{"mvn", "-B", "-q", "dependency:copy-dependencies", "-DoutputDirectory=" + filepath.Join(work, "lib"), "-DincludeScope=runtime"},
		{"javac", "-cp", filepath.Join(work, "lib", "*"), "-d", filepath.Join(work, "classes"), "Latch.java"},
	} {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Dir = work
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w\n%s", command[0], err, out)
		}
	}
	// In one step, so that several processes may build at once.
	if err := os.Rename(work, dir); err != nil {
		if _, statErr := os.Stat(dir); statErr != nil {
			return "", err
		}
	}
	return classPath, nil
})

// A rival is a process that stands for leader with Curator's LeaderLatch.
type rival struct {
	t     testing.TB
	o     *office
	name  string
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // answers
	done  chan struct{}
}

// startRival starts a rival that holds the office while it leads.
func startRival(t testing.TB, connect, path string, o *office, name string) *rival {
	t.Helper()
	classPath, err := curator()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	r := &rival{t: t, o: o, name: name, lines: make(chan string, 10), done: make(chan struct{})}
	r.cmd = exec.Command("java", "-Xmx64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classPath, "Latch", connect, path, name, "6000")
	r.cmd.Stderr = os.Stderr
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.done)
		for s := bufio.NewScanner(out); s.Scan(); {
			switch line := s.Text(); line {
			case "leads":
				o.Enter(name, 0)
			case "lost":
				o.Leave(name)
			default:
				r.lines <- line
			}
		}
	}()
	t.Cleanup(r.kill)
	r.hears("started")
	return r
}

func (r *rival) hears(want string) string {
	r.t.Helper()
	select {
	case line := <-r.lines:
		if !strings.HasPrefix(line, want) {
			r.t.Fatalf("%s says %q; want %q", r.name, line, want)
		}
		return strings.TrimPrefix(line, want)
	case <-r.done:
		r.t.Fatalf("%s has ended; want %q", r.name, want)
	case <-time.After(patience):
		r.t.Fatalf("%s says nothing; want %q", r.name, want)
	}
	return ""
}

func (r *rival) say(line string) {
	r.t.Helper()
	if _, err := io.WriteString(r.in, line+"\n"); err != nil {
		r.t.Fatal(err)
	}
}

// stop ends the rival in good order. It leads no longer from the moment at which it is told to stop.
func (r *rival) stop() {
	r.t.Helper()
	r.o.Leave(r.name)
	r.say("close")
	r.hears("closed")
	<-r.done
}

// kill is a crash: nothing is given up.
func (r *rival) kill() {
	_ = r.cmd.Process.Kill() // it may have ended
	<-r.done
	_ = r.cmd.Wait()
	r.o.Leave(r.name)
}

// A fleet of three moves from Curator to this library, one replica at a time, and back. There are never two leaders, and somebody leads after each step.
func TestMigrationFromCurator(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	o := newOffice(t)
	const election, ttl = "team/job", 6 * time.Second
	var stops []func()
	java := func(i int) func() { return startRival(t, z.Addr(), "/"+election, o, fmt.Sprint("curator-", i)).stop }
	ours := func(i int) func() {
		return join(t, use(t, z.URL()), o, election, fmt.Sprint("tenure-", i), ttl)
	}
	for i := range 3 {
		stops = append(stops, java(i))
	}
	for _, step := range []struct {
		kind  string
		start func(i int) func()
	}{{"tenure", ours}, {"curator", java}} {
		for i := range stops {
			o.AwaitLeader("")
			stops[i]()
			stops[i] = step.start(i)
		}
		o.AwaitLeader(step.kind)
	}
	t.Logf("terms: %v", o.All())
}

// Each follows the other's crash and sees the other as the leader.
func TestCuratorCrashes(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	o := newOffice(t)
	const election, ttl = "e", 4 * time.Second
	store := use(t, z.URL())
	first := startRival(t, z.Addr(), "/"+election, o, "curator-1")
	o.AwaitLeader("curator-1")
	r, err := store.Get(deadline(t), election)
	if err != nil || r.Leader != "curator-1" || r.Token == 0 {
		t.Errorf("the record is %+v, %v", r, err)
	}
	if err := store.Ask(deadline(t), election, r.Token); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("asking a latch to resign: %v; want ErrUnsupported", err)
	}

	ourStore := open(t, z.URL())
	s := openSession(t, ourStore, "tenure-1", ttl)
	won := make(chan uint64, 1)
	go func() {
		r, err := campaign(deadline(t), s, election)
		if err != nil {
			t.Errorf("campaign: %v", err)
		}
		won <- r.Token
	}()
	quit := make(chan struct{})
	kept := make(chan struct{})
	go func() { // as package tenure does
		defer close(kept)
		for {
			select {
			case <-quit:
				return
			case <-time.After(ttl / 4):
			}
			if _, err := s.KeepAlive(deadline(t)); err != nil {
				t.Errorf("renewal: %v", err)
				return
			}
		}
	}()
	eventually(t, func() string {
		children, _, err := connect(t, z.URL()).Children("/e")
		if len(children) != 2 {
			return fmt.Sprintf("candidates %q, %v", children, err)
		}
		return ""
	})
	second := startRival(t, z.Addr(), "/"+election, o, "curator-2")
	began := time.Now()
	first.kill()
	if token := <-won; token <= r.Token {
		t.Errorf("token %d after %d", token, r.Token)
	}
	t.Logf("a latch that crashed is replaced after %v", time.Since(began).Round(time.Millisecond))
	o.Enter("tenure-1", 0)
	second.say("who")
	if who := second.hears("leader "); who != "tenure-1" {
		t.Errorf("Curator sees the leader %q", who)
	}

	close(quit)
	<-kept
	o.Leave("tenure-1")
	began = time.Now()
	if err := ourStore.Close(); err != nil { // which leaves the session to lapse, as a crash does
		t.Fatal(err)
	}
	o.AwaitLeader("curator-2")
	t.Logf("a member that crashed is replaced after %v", time.Since(began).Round(time.Millisecond))
	second.stop()
}

// What a leader publishes does not use up the watch of the latch behind it, which is set once: the latch hears of the leader's end and leads. Whoever of
// this library reads the election sees what was published, and none of it in the next term.
func TestCuratorLeadsAfterOneThatPublished(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	o := newOffice(t)
	const election = "team/job"
	store := use(t, z.URL())
	member, err := tenure.Join(deadline(t), store, tenure.Config{ID: "tenure-1", TTL: 6 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	term, err := member.Campaign(deadline(t), election)
	if err != nil {
		t.Fatal(err)
	}
	o.Enter("tenure-1", term.Token())
	children, _, err := connect(t, z.URL()).Children("/" + election)
	if err != nil || len(children) != 1 {
		t.Fatalf("candidates %q, %v", children, err)
	}
	latch := startRival(t, z.Addr(), "/"+election, o, "curator-1")
	eventually(t, func() string {
		if n := watchers(t, z.Addr(), "/"+election+"/"+children[0]); n < 2 {
			return fmt.Sprintf("%d sessions watch the leader's node; want the leader's and the latch's", n)
		}
		return ""
	})
	for _, value := range []string{"one", "two"} {
		if err := term.Publish(deadline(t), []byte(value)); err != nil {
			t.Fatal(err)
		}
		if r, err := store.Get(deadline(t), election); err != nil || string(r.Value) != value || r.Token != term.Token() {
			t.Errorf("the record is %+v, %v; want the value %q", r, err, value)
		}
	}
	o.Leave("tenure-1")
	if err := term.Resign(deadline(t)); err != nil {
		t.Fatal(err)
	}
	o.AwaitLeader("curator-1")
	if r, err := store.Get(deadline(t), election); err != nil || r.Leader != "curator-1" || len(r.Value) != 0 {
		t.Errorf("the record is %+v, %v; want the latch's", r, err)
	}
	latch.stop()
	if err := member.Leave(deadline(t)); err != nil {
		t.Error(err)
	}
}

// watchers counts the sessions that watch a node at a server.
func watchers(t testing.TB, addr, path string) (n int) {
	t.Helper()
	_, list, _ := strings.Cut("\n"+testserver.ZooKeeperCommand(t, addr, "wchp"), "\n"+path+"\n")
	for line := range strings.Lines(list) {
		if !strings.HasPrefix(line, "\t") {
			break
		}
		n++
	}
	return n
}
