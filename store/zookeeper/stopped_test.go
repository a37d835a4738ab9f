package zookeeper_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/zookeeper"
)

const stoppedVariable = "TENURE_TEST_ZOOKEEPER_CHILD"

// TestMain is the child of TestProcessStopped when its variable is set.
func TestMain(m *testing.M) {
	if storeURL := os.Getenv(stoppedVariable); storeURL != "" {
		runChild(storeURL)
	}
	os.Exit(m.Run())
}

// runChild leads, and says for each unit of work whether the term allowed it.
func runChild(storeURL string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	fail := func(err error) {
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	store, err := zookeeper.Open(ctx, storeURL)
	fail(err)
	member, err := tenure.Join(ctx, store, tenure.Config{ID: "child", TTL: 3 * time.Second})
	fail(err)
	term, err := member.Campaign(ctx, "e")
	fail(err)
	fmt.Println("leads", term.Token())
	for {
		if err := term.Check(); err != nil {
			fmt.Println("stopped", err)
			os.Exit(0)
		}
		fmt.Println("worked", term.Token())
		time.Sleep(10 * time.Millisecond) // the next unit of work
	}
}

// A leader's process is stopped past its TTL and goes on: it does not do another unit of work, and what it does late harms nobody (A4, A10).
func TestProcessStopped(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self)
	child.Env = append(os.Environ(), stoppedVariable+"="+z.URL())
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill() }() // it has ended, unless the test has failed
	lines := make(chan string, 100_000)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	next := func() string {
		select {
		case line, ok := <-lines:
			if !ok {
				t.Fatal("the child has ended")
			}
			return line
		case <-time.After(patience):
			t.Fatal("the child says nothing")
		}
		return ""
	}
	first, err := strconv.ParseUint(strings.TrimPrefix(next(), "leads "), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if line := next(); !strings.HasPrefix(line, "worked") {
		t.Fatal(line)
	}
	if err := child.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	s := openSession(t, use(t, z.URL()), "next", time.Minute)
	won := acquire(t, s, "e") // after the child's TTL
	if won.Token <= first {
		t.Errorf("token %d after %d", won.Token, first)
	}
	for drained := false; !drained; { // of what was said before the stop
		select {
		case <-lines:
		default:
			drained = true
		}
	}
	if err := child.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	// A unit that had been allowed before the stop may still be reported.
	worked := 0
	for line := next(); !strings.HasPrefix(line, "stopped"); line = next() {
		worked++
	}
	if worked > 1 {
		t.Errorf("the child has worked %d times after it was stopped for more than its TTL", worked)
	}
	if err := child.Wait(); err != nil && !errors.Is(err, os.ErrClosed) {
		t.Errorf("the child: %v", err)
	}
	r, err := use(t, z.URL()).Get(deadline(t), "e")
	if err != nil || r.Token != won.Token {
		t.Errorf("the record is %+v, %v; want token %d", r, err, won.Token)
	}
}
