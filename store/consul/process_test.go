//go:build linux

package consul_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/consul"
)

// childVariable has the store URL of a child process of the tests.
const childVariable = "TENURE_TEST_CONSUL_CHILD"

func TestMain(m *testing.M) {
	url := os.Getenv(childVariable)
	if url == "" {
		os.Exit(m.Run())
	}
	if err := childLeads(url); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

// childLeads leads until its input ends, and says when it begins, and when it notices that it must not.
func childLeads(url string) error {
	store, err := consul.Open(url)
	if err != nil {
		return err
	}
	defer store.Close()
	member, err := tenure.Join(context.Background(), store, tenure.Config{ID: "child", TTL: 3 * time.Second})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	_ = member.Lead(ctx, "orders", func(ctx context.Context, term *tenure.Term) error {
		fmt.Println("leads", term.Token())
		for term.Check() == nil {
			time.Sleep(time.Millisecond) // a unit of work
		}
		fmt.Println("stopped", term.Token())
		return nil
	})
	return nil
}

// A process is stopped for longer than its TTL, and than Consul takes to end its session. Another leads, and what the first does when it is resumed
// harms nobody.
func TestPausedProcess(t *testing.T) {
	t.Parallel()
	url := testserver.ConsulURL(t) + "&prefix=" + fmt.Sprintf("paused-%d/", time.Now().UnixNano())
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childVariable+"="+url)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe() // its end ends the child
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT) // it may have ended
		_ = in.Close()
		_ = cmd.Wait() // what went wrong is in its lines
	})
	next := func() string {
		t.Helper()
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
	var first, again uint64
	if _, err := fmt.Sscanf(next(), "leads %d", &first); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	o := newOffice(t)
	other := startMember(t, url, o, "orders", "other", 3*time.Second)
	o.AwaitLeader("other")
	store := open(t, url)
	before, err := store.Get(t.Context(), "orders")
	if err != nil || before.Token <= first {
		t.Fatalf("the record is %+v, %v; want a token above %d", before, err, first)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if line := next(); line != fmt.Sprint("stopped ", first) {
		t.Errorf("the child says %q; want that it has stopped", line)
	}
	// Its late requests have to arrive.
	time.Sleep(2 * time.Second)
	if after, err := store.Get(t.Context(), "orders"); err != nil || after.Session != before.Session || after.Token != before.Token {
		t.Errorf("the record was %+v and is %+v, %v", before, after, err)
	}
	if got := o.All(); len(got) != 1 {
		t.Errorf("the terms of the other are %v; want one that goes on", got)
	}
	other.stop()
	if _, err := fmt.Sscanf(next(), "leads %d", &again); err != nil || again <= before.Token {
		t.Errorf("the child leads again with token %d, %v; want one above %d", again, err, before.Token)
	}
}
