//go:build linux

package etcd_test

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
	"github.com/gotenure/tenure/store/etcd"
)

// childVariable has the store URL of a child process of the tests.
const childVariable = "TENURE_TEST_ETCD_CHILD"

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
	store, err := etcd.Open(context.Background(), url)
	if err != nil {
		return err
	}
	defer store.Close()
	member, err := tenure.Join(context.Background(), store, tenure.Config{ID: "child", TTL: fleetTTL, StablePeriod: time.Millisecond})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	_ = member.Lead(ctx, "e", func(ctx context.Context, term *tenure.Term) error {
		fmt.Println("leads", term.Token())
		for term.Check() == nil {
			time.Sleep(time.Millisecond) // a unit of work
		}
		fmt.Println("stopped", term.Token())
		return nil
	})
	leaving, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return member.Leave(leaving)
}

// A child is a process of its own that stands in election e.
type child struct {
	t       *testing.T
	process *os.Process
	lines   <-chan string
	end     func() // lets it end in good order
}

func startChild(t *testing.T, url string) child {
	t.Helper()
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
	return child{t, cmd.Process, lines, func() { _ = in.Close() }}
}

func (c child) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// says returns the token of the child's next line, which has to begin with a word.
func (c child) says(word string) (token uint64) {
	c.t.Helper()
	select {
	case line, ok := <-c.lines:
		if _, err := fmt.Sscanf(line, word+" %d", &token); err != nil {
			c.t.Fatalf("the child says %q (ended: %t); want %s: %v", line, !ok, word, err)
		}
	case <-time.After(patience):
		c.t.Fatalf("the child says nothing; want %s", word)
	}
	return token
}

// A leader's process is stopped for longer than its TTL. Another leads, and what the first does when it is resumed harms nobody (A4, A10).
func TestStoppedLeader(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	c := startChild(t, server.URL())
	first := c.says("leads")
	c.signal(syscall.SIGSTOP)
	f := startFleet(t, server.URL())
	second := f.leads()
	if second <= first {
		t.Errorf("token %d after %d", second, first)
	}
	c.signal(syscall.SIGCONT)
	if token := c.says("stopped"); token != first {
		t.Errorf("the child has stopped the term with token %d; want %d", token, first)
	}
	time.Sleep(fleetTTL / 2) // its late requests have to arrive
	s := openStore(t, server.URL())
	r, err := s.Get(deadline(t), "e")
	if err != nil || r.Token != second || f.leads() != second {
		t.Errorf("the record is %+v, %v; want that the term with token %d goes on", r, err, second)
	}
	eventually(t, func() string {
		if err := s.Ask(deadline(t), "e", second); err != nil {
			return err.Error()
		}
		return ""
	})
	if token := c.says("leads"); token <= second {
		t.Errorf("the child leads again with token %d after %d", token, second)
	}
}

// The process of the next in line is stopped for longer than its TTL, and meanwhile the leader goes and another follows: the news that it finds in its connection when it is
// resumed is old, and so is its place (A10, B1).
func TestStoppedCandidate(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	operator := connect(t, server.URL())
	holder := openSession(t, openStore(t, server.URL()), "holder", time.Hour)
	held := acquire(t, holder, "e")
	c := startChild(t, server.URL())
	eventually(t, func() string {
		if rivals(t, operator, "e") < 2 {
			return "the child does not stand"
		}
		return ""
	})
	time.Sleep(100 * time.Millisecond) // its watch is there then
	c.signal(syscall.SIGSTOP)
	if err := holder.Release(deadline(t), "e", held.Token); err != nil {
		t.Fatal(err)
	}
	rival := openSession(t, openStore(t, server.URL()), "rival", time.Hour)
	o := <-campaign(t, rival, "e")
	if o.err != nil {
		t.Fatal(o.err)
	}
	c.signal(syscall.SIGCONT)
	select {
	case line := <-c.lines:
		t.Errorf("the child says %q while the rival leads", line)
	case <-time.After(fleetTTL / 2): // long enough for what it has read
	}
	if err := rival.Release(deadline(t), "e", o.record.Token); err != nil {
		t.Fatal(err)
	}
	if token := c.says("leads"); token <= o.record.Token {
		t.Errorf("the child leads with token %d after %d", token, o.record.Token)
	}
	c.end()
	c.says("stopped")
}
