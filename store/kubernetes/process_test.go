//go:build linux

package kubernetes_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/kubernetes"
)

const accountDir = "/run/secrets/kubernetes.io/serviceaccount" // /var/run is a link to /run

func TestMain(m *testing.M) {
	testserver.Main(m, map[string]func(string) error{
		"lead": func(url string) error {
			store, err := kubernetes.Open(context.Background(), url)
			if err != nil {
				return err
			}
			return testserver.Lead(store, "orders", tenure.Config{ID: "child", TTL: 4 * time.Second})
		},
		"pod": childIsPod,
	})
}

// A process is stopped for longer than its TTL. Another leads, and what the first does when it is resumed harms nobody.
func TestPausedProcess(t *testing.T) {
	t.Parallel()
	url, _, o := newFleet(t)
	c := testserver.StartChild(t, "lead", url, nil)
	first := c.Says("leads")
	c.Signal(syscall.SIGSTOP)
	other := startMember(t, url, o, "orders", "other", 4*time.Second)
	o.AwaitLeader("other")
	store := open(t, url)
	before, err := store.Get(t.Context(), "orders")
	if err != nil || before.Token <= first {
		t.Fatalf("the record is %+v, %v; want a token above %d", before, err, first)
	}
	c.Signal(syscall.SIGCONT)
	if token := c.Says("stopped"); token != first {
		t.Errorf("the child has stopped the term with token %d; want %d", token, first)
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
	if again := c.Says("leads"); again <= before.Token {
		t.Errorf("the child leads again with token %d; want one above %d", again, before.Token)
	}
}

// childIsPod makes this process's own /run that of a pod, and elects there with nothing but kubernetes:// for a URL.
func childIsPod(storeURL string) error {
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
	store, err := kubernetes.Open(context.Background(), storeURL)
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
	pod := testserver.StartChild(t, "pod", "kubernetes://", attributes, "POD_TOKEN_FILE="+token, "POD_CA_FILE="+field(t, text, "certificate-authority"), "POD_TEST_NAMESPACE="+a.namespace,
		"KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port)
	want := pod.Says("leads")
	if r, err := open(t, url).Get(t.Context(), "orders"); err != nil || r.Leader != "pod" || r.Token != want {
		t.Errorf("the record is %+v, %v; want that pod leads with token %d", r, err, want)
	}
}
