//go:build linux

package consul_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/consul"
)

func TestMain(m *testing.M) {
	testserver.Main(m, map[string]func(string) error{"lead": func(url string) error {
		store, err := consul.Open(url)
		if err != nil {
			return err
		}
		return testserver.Lead(store, "orders", tenure.Config{ID: "child", TTL: 3 * time.Second})
	}})
}

// A process is stopped for longer than its TTL, and than Consul takes to end its session. Another leads, and what the first does when it is resumed
// harms nobody.
func TestPausedProcess(t *testing.T) {
	t.Parallel()
	url := testserver.ConsulURL(t) + "&prefix=" + fmt.Sprintf("paused-%d/", time.Now().UnixNano())
	c := testserver.StartChild(t, "lead", url, nil)
	first := c.Says("leads")
	c.Signal(syscall.SIGSTOP)
	o := newOffice(t)
	other := startMember(t, url, o, "orders", "other", 3*time.Second)
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
