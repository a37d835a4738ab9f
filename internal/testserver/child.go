//go:build unix

package testserver

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
	"github.com/gotenure/tenure/driver"
)

const (
	roleVariable = "TENURE_TEST_ROLE" // what a child process of the tests does
	urlVariable  = "TENURE_TEST_ROLE_STORE"
)

// Main is for TestMain of a package whose tests call StartChild. In a child it runs the role with the store URL, and prints the error if there is one.
func Main(m *testing.M, roles map[string]func(storeURL string) error) {
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := roles[role](os.Getenv(urlVariable)); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

// Lead is for the role of a child that stands in an election over a store, which it closes, until its input ends. It says "leads TOKEN" when a term begins, and "stopped
// TOKEN" when it notices that it must not go on.
func Lead(store driver.Store, election string, config tenure.Config) error {
	defer store.Close()
	member, err := tenure.Join(context.Background(), store, config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	_ = member.Lead(ctx, election, func(ctx context.Context, term *tenure.Term) error {
		fmt.Println("leads", term.Token())
		for term.Check() == nil {
			time.Sleep(time.Millisecond) // a unit of work
		}
		fmt.Println("stopped", term.Token())
		return nil
	})
	leaving, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	return member.Leave(leaving)
}

// A Child is a process of its own. It ends when the test does.
type Child struct {
	Lines <-chan string // what it prints; closed when it has ended
	End   func()        // ends its input

	t       testing.TB
	process *os.Process
}

// StartChild runs the test's program in another role, with a store URL and more variables. Attributes may be nil.
func StartChild(t testing.TB, role, storeURL string, attributes *syscall.SysProcAttr, env ...string) *Child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), roleVariable+"="+role, urlVariable+"="+storeURL), env...)
	cmd.SysProcAttr = attributes
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
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
	return &Child{Lines: lines, End: func() { _ = in.Close() }, t: t, process: cmd.Process}
}

// Signal sends it a signal.
func (c *Child) Signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// Says returns the token of its next line, which has to begin with a word.
func (c *Child) Says(word string) (token uint64) {
	c.t.Helper()
	select {
	case line, ok := <-c.Lines:
		if _, err := fmt.Sscanf(line, word+" %d", &token); err != nil {
			c.t.Fatalf("the child says %q (ended: %t); want %s: %v", line, !ok, word, err)
		}
	case <-time.After(Patience):
		c.t.Fatalf("the child says nothing; want %s", word)
	}
	return token
}
