package etcd_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/etcd"
)

// elect runs etcdctl elect. lines yields what it prints.
func elect(t *testing.T, server *testserver.Etcd, args ...string) (lines <-chan string, process *os.Process) {
	t.Helper()
	cmd := exec.Command(testserver.EtcdProgram(t, "etcdctl"), append([]string{"--endpoints=" + server.Endpoint(), "elect"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	printed := make(chan string, 100)
	go func() {
		defer close(printed)
		for s := bufio.NewScanner(out); s.Scan(); {
			printed <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	return printed, cmd.Process
}

func reads(t *testing.T, lines <-chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got, ok := <-lines:
			if !ok || got != w {
				t.Fatalf("etcdctl printed %q (ended: %t); want %q", got, !ok, w)
			}
		case <-time.After(patience):
			t.Fatalf("etcdctl has not printed %q", w)
		}
	}
}

// rivals returns how many candidates an election has.
func rivals(t *testing.T, c *clientv3.Client, election string) int64 {
	t.Helper()
	return must(c.Get(deadline(t), election+"/", clientv3.WithPrefix(), clientv3.WithCountOnly()))(t).Count
}

// Beside etcdctl elect: each waits for the other, follows it, and is seen by its observers.
func TestBesideEtcdctl(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	operator := connect(t, server.URL())
	s := openStore(t, server.URL())
	n := openSession(t, s, "n", time.Minute)
	watched, _ := elect(t, server, "-l", "e")

	held := acquire(t, n, "e")
	reads(t, watched, "e/"+n.ID(), "of "+n.ID())
	printed, process := elect(t, server, "e", "its proposal")
	eventually(t, func() string {
		if rivals(t, operator, "e") < 2 {
			return "etcdctl does not stand"
		}
		return ""
	})
	select {
	case line := <-printed:
		t.Fatalf("etcdctl printed %q while the member leads", line)
	case <-time.After(300 * time.Millisecond): // long enough for a rival that does not wait
	}
	if err := n.Release(deadline(t), "e", held.Token); err != nil {
		t.Fatal(err)
	}
	kv := leading(t, operator, "e")
	reads(t, printed, string(kv.Key), "its proposal")
	reads(t, watched, string(kv.Key), "its proposal")

	r := queue(t, n, "e")
	if r.Leader != "its proposal" || string(r.Value) != "its proposal" || r.Token != uint64(kv.CreateRevision) {
		t.Errorf("the member sees %+v lead", r)
	}
	if got, err := s.Get(deadline(t), "e"); err != nil || got.Leader != "its proposal" {
		t.Errorf("Get: %+v, %v", got, err)
	}
	if err := s.Ask(deadline(t), "e", r.Token); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Ask of etcdctl: %v; want ErrUnsupported", err)
	}
	won := campaign(t, n, "e")
	if err := process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	o := <-won
	if o.err != nil || o.record.Token <= r.Token {
		t.Fatalf("after etcdctl: %+v", o)
	}
	reads(t, watched, "e/"+n.ID(), "of "+n.ID())
}

// Beside concurrency.Election: both sides come and go, nobody leads beside another, and everybody sees who does.
func TestBesideConcurrencyElection(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	operator := connect(t, server.URL())
	s := openStore(t, server.URL())
	session := must(concurrency.NewSession(operator, concurrency.WithTTL(10)))(t)
	t.Cleanup(func() { _ = session.Close() })
	theirs := concurrency.NewElection(session, "e")
	n := openSession(t, s, "n", time.Minute)

	states := make(chan driver.Record, 100)
	watching, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for r, err := range s.Watch(watching, "e") {
			if err != nil {
				return
			}
			states <- r
		}
	}()
	sees := func(what string, f func(driver.Record) bool) {
		t.Helper()
		for end := time.After(patience); ; {
			select {
			case r := <-states:
				if f(r) {
					return
				}
			case <-end:
				t.Fatalf("the watch has not seen %s", what)
			}
		}
	}
	observed := theirs.Observe(watching)
	observes := func(value string) {
		t.Helper()
		for end := time.After(patience); ; {
			select {
			case r := <-observed:
				if string(r.Kvs[0].Value) == value {
					return
				}
			case <-end:
				t.Fatalf("Observe has not seen %q", value)
			}
		}
	}

	// Theirs leads, publishes, and resigns.
	if err := theirs.Campaign(deadline(t), "their value"); err != nil {
		t.Fatal(err)
	}
	sees("them lead", func(r driver.Record) bool {
		return r.Leader == "their value" && r.Session == fmt.Sprintf("%x", session.Lease())
	})
	won := campaign(t, n, "e")
	eventually(t, func() string {
		if rivals(t, operator, "e") < 2 {
			return "the member does not stand"
		}
		return ""
	})
	if err := theirs.Proclaim(deadline(t), "another value"); err != nil {
		t.Fatal(err)
	}
	sees("the other value", func(r driver.Record) bool { return string(r.Value) == "another value" })
	select {
	case o := <-won:
		t.Fatalf("the member: %+v while the other leads", o)
	default:
	}
	rev := theirs.Rev()
	if err := theirs.Resign(deadline(t)); err != nil {
		t.Fatal(err)
	}
	o := <-won
	if o.err != nil || o.record.Token <= uint64(rev) {
		t.Fatalf("after a resignation: %+v", o)
	}
	observes("of " + n.ID())

	// Ours leads; theirs waits, and leads when ours releases, or dies.
	leads := make(chan error, 1)
	stand := func() { leads <- theirs.Campaign(deadline(t), "their value") }
	go stand()
	eventually(t, func() string {
		if rivals(t, operator, "e") < 2 {
			return "the other does not stand"
		}
		return ""
	})
	r, err := theirs.Leader(deadline(t))
	if err != nil || string(r.Kvs[0].Value) != "of "+n.ID() {
		t.Errorf("the other sees %v lead, %v", r, err)
	}
	if err := n.Release(deadline(t), "e", o.record.Token); err != nil {
		t.Fatal(err)
	}
	if err := <-leads; err != nil {
		t.Fatal(err)
	}
	sees("them lead", func(r driver.Record) bool { return r.Leader == "their value" })
	if err := theirs.Resign(deadline(t)); err != nil {
		t.Fatal(err)
	}
	mortal := openSession(t, s, "mortal", 2*time.Second)
	acquire(t, mortal, "e")
	go stand()
	if err := <-leads; err != nil {
		t.Fatalf("after a member's death: %v", err)
	}
	sees("them lead", func(r driver.Record) bool { return r.Leader == "their value" })
	// Their session ends without a resignation.
	won = campaign(t, n, "e")
	session.Orphan()
	must(operator.Revoke(deadline(t), session.Lease()))(t)
	if o := <-won; o.err != nil {
		t.Errorf("after the end of their session: %+v", o)
	}
}

// Three of theirs and three of ours take turns, hundreds of times; at most one leads at a time.
func TestMixedFleet(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	var leading, terms atomic.Int64
	lead := func() {
		if leading.Add(1) > 1 {
			t.Error("two lead at the same time")
		}
		terms.Add(1)
		time.Sleep(time.Millisecond) // work
		leading.Add(-1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	done := make(chan error, 6)
	for range 3 {
		c := connect(t, server.URL())
		session := must(concurrency.NewSession(c, concurrency.WithTTL(30)))(t)
		e := concurrency.NewElection(session, "e")
		go func() {
			defer func() { _ = session.Close() }()
			for {
				if err := e.Campaign(ctx, "theirs"); err != nil {
					done <- ctx.Err()
					return
				}
				lead()
				if err := e.Resign(context.Background()); err != nil {
					done <- err
					return
				}
			}
		}()
		n := openSession(t, openStore(t, server.URL()), "ours", 30*time.Second)
		go func() {
			for {
				r, err := n.Acquire(ctx, driver.Bid{Election: "e", Queue: true})
				if errors.Is(err, driver.ErrHeld) {
					if err = n.Await(ctx, "e"); err == nil {
						continue
					}
				}
				if err != nil {
					_ = n.Release(context.Background(), "e", 0)
					done <- ctx.Err()
					return
				}
				lead()
				if err := n.Release(context.Background(), "e", r.Token); err != nil {
					done <- err
					return
				}
			}
		}()
	}
	for range 6 {
		if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a candidate ended with %v", err)
		}
	}
	t.Logf("%d terms", terms.Load())
	if terms.Load() < 20 {
		t.Errorf("only %d terms in 5 s", terms.Load())
	}
}

// The guard lets a write through while the term lasts, and not after it, whoever leads.
func TestGuard(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	operator := connect(t, server.URL())
	s := etcd.New(operator, etcd.Options{Prefix: "p/"})
	t.Cleanup(func() { _ = s.Close() })
	n := openSession(t, s, "n", time.Minute)
	write := func(r driver.Record) bool {
		t.Helper()
		return must(operator.Txn(deadline(t)).If(s.Guard(r.Election, r.Session, r.Token)).Then(clientv3.OpPut("data", "x")).Commit())(t).Succeeded
	}
	held := acquire(t, n, "e")
	if !write(held) {
		t.Error("a write of the leader is refused")
	}
	if write(driver.Record{Election: "e", Session: n.ID(), Token: held.Token - 1}) || write(driver.Record{Election: "e", Session: "nobody"}) {
		t.Error("a write of another token is let through")
	}
	if err := n.Release(deadline(t), "e", held.Token); err != nil {
		t.Fatal(err)
	}
	if write(held) || write(driver.Record{Election: "e", Session: n.ID()}) {
		t.Error("a write is let through after the term")
	}
	again := acquire(t, n, "e")
	if write(held) || !write(again) {
		t.Error("the guard does not tell one term of a session from the next")
	}
}
