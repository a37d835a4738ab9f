//go:build linux

package kubernetes_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/kubernetes"
)

const (
	roleVariable = "TENURE_TEST_ROLE" // what a child process of the tests does
	urlVariable  = "TENURE_TEST_STORE"
	accountDir   = "/run/secrets/kubernetes.io/serviceaccount" // /var/run is a link to /run
)

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(roleVariable) {
	case "lead":
		err = childLeads(os.Getenv(urlVariable))
	case "pod":
		err = childIsPod()
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

// child runs this program in another role. Its lines come by the channel.
func child(t *testing.T, role string, attributes *syscall.SysProcAttr, env ...string) (*exec.Cmd, <-chan string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), append(env, roleVariable+"="+role)...)
	cmd.SysProcAttr = attributes
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
	return cmd, lines
}

func next(t *testing.T, lines <-chan string) string {
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

// childLeads leads until its input ends, and says when it begins, and when it notices that it must not.
func childLeads(url string) error {
	store, err := kubernetes.Open(context.Background(), url)
	if err != nil {
		return err
	}
	defer store.Close()
	member, err := tenure.Join(context.Background(), store, tenure.Config{ID: "child", TTL: 4 * time.Second})
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

// A process is stopped for longer than its TTL. Another leads, and what the first does when it is resumed harms nobody.
func TestPausedProcess(t *testing.T) {
	t.Parallel()
	url, _, o := newFleet(t)
	cmd, lines := child(t, "lead", nil, urlVariable+"="+url)
	var first, again uint64
	if _, err := fmt.Sscanf(next(t, lines), "leads %d", &first); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	other := startMember(t, url, o, "orders", "other", 4*time.Second)
	o.AwaitLeader("other")
	store := open(t, url)
	before, err := store.Get(t.Context(), "orders")
	if err != nil || before.Token <= first {
		t.Fatalf("the record is %+v, %v; want a token above %d", before, err, first)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if line := next(t, lines); line != fmt.Sprint("stopped ", first) {
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
	if _, err := fmt.Sscanf(next(t, lines), "leads %d", &again); err != nil || again <= before.Token {
		t.Errorf("the child leads again with token %d, %v; want one above %d", again, err, before.Token)
	}
}

// childIsPod makes this process's own /run that of a pod, and elects there with nothing but kubernetes:// for a URL.
func childIsPod() error {
	runtime.LockOSThread()
	files := make(map[string][]byte)
	for name, from := range map[string]string{"token": "POD_TOKEN_FILE", "ca.crt": "POD_CA_FILE"} {
		text, err := os.ReadFile(os.Getenv(from))
		if err != nil {
			return err
		}
		files[name] = text
	}
	files["namespace"] = []byte(os.Getenv("POD_TEST_NAMESPACE"))
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount on /run: %w", err)
	}
	if err := os.MkdirAll(accountDir, 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(accountDir, name), text, 0o600); err != nil {
			return err
		}
	}
	store, err := kubernetes.Open(context.Background(), "kubernetes://")
	if err != nil {
		return err
	}
	defer store.Close()
	s, err := store.Open(context.Background(), "pod", time.Minute)
	if err != nil {
		return err
	}
	r, err := s.Acquire(context.Background(), driver.Bid{Election: "orders"})
	if err != nil {
		return err
	}
	fmt.Println("leads", r.Token)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// In a pod the service account's files and the variables that a kubelet sets are enough.
func TestInPod(t *testing.T) {
	t.Parallel()
	url, a, _ := newFleet(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(a.grant(t, "member", leaseRule(allVerbs))), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(a.config)
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := strings.Cut(addrOf(a), ":")
	attributes := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		attributes.Cloneflags |= syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	}
	_, lines := child(t, "pod", attributes, "POD_TOKEN_FILE="+token, "POD_CA_FILE="+field(t, text, "certificate-authority"), "POD_TEST_NAMESPACE="+a.namespace,
		"KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port)
	var want uint64
	if line := next(t, lines); !strings.HasPrefix(line, "leads ") {
		t.Fatalf("the child says %q", line)
	} else if _, err := fmt.Sscanf(line, "leads %d", &want); err != nil {
		t.Fatal(err)
	}
	if r, err := open(t, url).Get(t.Context(), "orders"); err != nil || r.Leader != "pod" || r.Token != want {
		t.Errorf("the record is %+v, %v; want that pod leads with token %d", r, err, want)
	}
}
