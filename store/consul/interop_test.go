//go:build unix

package consul_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/gotenure/tenure/internal/testserver"
)

// A locked is a replica that elects with consul lock. Its work is a child that ends when it is told to.
type locked struct {
	replica
	cmd *exec.Cmd
}

// startConsulLock starts consul lock; its election is prefix + "/.lock".
func startConsulLock(t testing.TB, server *testserver.Consul, o *office, prefix, name string) locked {
	t.Helper()
	end := filepath.Join(t.TempDir(), "end")
	cmd := exec.Command(testserver.ConsulProgram(t), "lock", "-http-addr=http://"+server.Addr(), "-name="+name, prefix,
		"echo leads; while [ ! -e '"+end+"' ]; do sleep 0.02; done")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(out); s.Scan(); {
			if s.Text() == "leads" {
				o.Enter(name, 0)
			}
		}
	}()
	stop := sync.OnceFunc(func() {
		o.Leave(name) // its work ends before it releases
		if err := os.WriteFile(end, nil, 0o600); err != nil {
			t.Error(err)
		}
		if !o.Led(name) { // it waits still
			_ = cmd.Process.Signal(os.Interrupt)
		}
		<-read
		_ = cmd.Wait() // its status is that of its child
	})
	t.Cleanup(stop)
	return locked{replica{name, stop}, cmd}
}

// awaitWaiting waits until a session of that name exists, and then until its client waits for the lock.
func awaitWaiting(t testing.TB, admin *api.Client, name string) {
	t.Helper()
	eventually(t, func() string {
		all, _, err := admin.Session().List(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if s.Name == name {
				return ""
			}
		}
		return name + " has no session"
	})
	time.Sleep(300 * time.Millisecond) // it asks for the lock, which shows nowhere
}

// While consul lock holds an election a member waits, and takes over as soon as it ends.
func TestTenureWaitsForConsulLock(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t)
	admin := client(t, server.URL())
	o := newOffice(t)
	theirs := startConsulLock(t, server, o, "orders", "lock-1")
	o.AwaitLeader("lock-1")
	store := open(t, server.URL())
	if r, err := store.Get(t.Context(), "orders/.lock"); err != nil || r.Leader != "lock-1" || r.Token == 0 {
		t.Errorf("the record is %+v, %v; want that lock-1 leads with a token", r, err)
	}
	startMember(t, server.URL(), o, "orders/.lock", "tenure-1", 10*time.Second)
	awaitWaiting(t, admin, "tenure-1")
	if who := o.Leader(); who != "lock-1" {
		t.Fatalf("the leader is %q; want lock-1", who)
	}
	theirs.stop()
	began := time.Now()
	o.AwaitLeader("tenure-1")
	t.Logf("taken over %v after consul lock had ended", time.Since(began).Round(time.Millisecond))
}

// While a member leads consul lock waits, and takes over when the member resigns, and when its session ends.
func TestConsulLockWaitsForTenure(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t)
	admin := client(t, server.URL())
	o := newOffice(t)
	ours := startMember(t, server.URL(), o, "orders/.lock", "tenure-1", 10*time.Second)
	o.AwaitLeader("tenure-1")
	theirs := startConsulLock(t, server, o, "orders", "lock-1")
	awaitWaiting(t, admin, "lock-1")
	if who := o.Leader(); who != "tenure-1" {
		t.Fatalf("the leader is %q; want tenure-1", who)
	}
	ours.stop()
	o.AwaitLeader("lock-1")
	theirs.stop()

	// A session that is gone, with its key.
	s := session(t, open(t, server.URL()), "gone", 10*time.Minute)
	eventually(t, func() string { // consul lock cleans its key up first
		if _, err := s.Acquire(t.Context(), bid("orders/.lock")); err != nil {
			return err.Error()
		}
		return ""
	})
	startConsulLock(t, server, o, "orders", "lock-2")
	awaitWaiting(t, admin, "lock-2")
	if who := o.Leader(); who != "" {
		t.Fatalf("the leader is %q; want nobody of the office", who)
	}
	if _, err := admin.Session().Destroy(s.ID(), nil); err != nil {
		t.Fatal(err)
	}
	o.AwaitLeader("lock-2")
}

// The session of consul lock has a lock-delay of 15 s. A member that waits for it leads when that is over, although Consul tells nobody.
func TestLockDelayOfOthers(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t)
	admin := client(t, server.URL())
	o := newOffice(t)
	theirs := startConsulLock(t, server, o, "orders", "lock-1")
	o.AwaitLeader("lock-1")
	startMember(t, server.URL(), o, "orders/.lock", "tenure-1", 10*time.Second)
	awaitWaiting(t, admin, "tenure-1")
	all, _, err := admin.Session().List(nil)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	o.Leave("lock-1") // its work is killed below, before anybody can follow
	if err := syscall.Kill(-theirs.cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Name == "lock-1" {
			if _, err := admin.Session().Destroy(s.ID, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	o.AwaitLeader("tenure-1")
	took := time.Since(began)
	if took < 14*time.Second {
		t.Errorf("led after %v, within the lock-delay of 15 s", took)
	}
	t.Logf("led %v after the session of consul lock was destroyed", took.Round(time.Millisecond))
}

// Options.LockDelay keeps others from an election whose leader's session was destroyed, and not from one that was resigned or left.
func TestLockDelay(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t)
	url := server.URL() + "&lock-delay=3s"
	store := open(t, url)
	a, b := session(t, store, "a", time.Minute), session(t, store, "b", time.Minute)
	first := acquire(t, a, "orders", "v")
	if err := a.Release(t.Context(), "orders", first.Token); err != nil {
		t.Fatal(err)
	}
	second := acquire(t, b, "orders", "v") // at once
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	third := acquire(t, a, "orders", "v") // at once
	began := time.Now()
	if _, err := client(t, url).Session().Destroy(a.ID(), nil); err != nil {
		t.Fatal(err)
	}
	c := session(t, store, "c", time.Minute)
	for {
		r, err := c.Acquire(t.Context(), bid("orders"))
		if err == nil {
			if took := time.Since(began); took < 2900*time.Millisecond || took > 20*time.Second {
				t.Errorf("taken after %v; want the lock-delay of 3 s and little more", took)
			}
			if first.Token >= second.Token || second.Token >= third.Token || third.Token >= r.Token {
				t.Errorf("tokens %d, %d, %d, %d; want them to grow", first.Token, second.Token, third.Token, r.Token)
			}
			return
		}
		if !strings.Contains(err.Error(), "lock-delay") {
			t.Fatalf("Acquire: %v; want that it names the lock-delay", err)
		}
		if err := c.Await(t.Context(), "orders"); err != nil {
			t.Fatal(err)
		}
	}
}

// A fleet of three moves from api.Lock to this library one replica at a time: never two leaders, and never none for longer than a moment.
func TestRollingMigration(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t)
	admin := client(t, server.URL())
	o := newOffice(t)
	var fleet []replica
	for i := range 3 {
		name := fmt.Sprint("lock-", i)
		fleet = append(fleet, startAPILock(t, server, o, "orders", name))
		awaitWaiting(t, admin, name)
	}
	o.AwaitLeader("lock")
	for i, old := range fleet {
		name := fmt.Sprint("tenure-", i)
		startMember(t, server.URL(), o, "orders", name, 10*time.Second)
		awaitWaiting(t, admin, name)
		led := o.Leader()
		old.stop()
		began := time.Now()
		o.AwaitLeader("")
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("nobody led for %v after %s, which led: %t, had stopped", took, old.name, led == old.name)
		}
	}
	o.AwaitLeader("tenure")
}

// startAPILock starts a replica that elects with the client's own lock.
func startAPILock(t testing.TB, server *testserver.Consul, o *office, key, name string) replica {
	t.Helper()
	lock, err := client(t, server.URL()).LockOpts(&api.LockOptions{Key: key, SessionName: name})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		lost, err := lock.Lock(ctx.Done())
		if err != nil || lost == nil {
			return // it was stopped before
		}
		o.Enter(name, 0)
		select {
		case <-ctx.Done():
		case <-lost:
			t.Errorf("%s has lost its lock", name)
		}
		o.Leave(name)
		if err := lock.Unlock(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}()
	stop := sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return replica{name, stop}
}
