//go:build linux

package etcd_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/etcd"
)

func TestMain(m *testing.M) {
	testserver.Main(m, map[string]func(string) error{"lead": func(url string) error {
		store, err := etcd.Open(context.Background(), url)
		if err != nil {
			return err
		}
		return testserver.Lead(store, "e", tenure.Config{ID: "child", TTL: fleetTTL, StablePeriod: time.Millisecond})
	}})
}

// A leader's process is stopped for longer than its TTL. Another leads, and what the first does when it is resumed harms nobody (A4, A10).
func TestStoppedLeader(t *testing.T) {
	t.Parallel()
	server := testserver.StartEtcd(t)
	c := testserver.StartChild(t, "lead", server.URL(), nil)
	first := c.Says("leads")
	c.Signal(syscall.SIGSTOP)
	f := startFleet(t, fleetTTL, server.URL())
	second := f.leads()
	if second <= first {
		t.Errorf("token %d after %d", second, first)
	}
	c.Signal(syscall.SIGCONT)
	if token := c.Says("stopped"); token != first {
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
	if token := c.Says("leads"); token <= second {
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
	c := testserver.StartChild(t, "lead", server.URL(), nil)
	eventually(t, func() string {
		if rivals(t, operator, "e") < 2 {
			return "the child does not stand"
		}
		return ""
	})
	time.Sleep(100 * time.Millisecond) // its watch is there then
	c.Signal(syscall.SIGSTOP)
	if err := holder.Release(deadline(t), "e", held.Token); err != nil {
		t.Fatal(err)
	}
	rival := openSession(t, openStore(t, server.URL()), "rival", time.Hour)
	o := <-campaign(t, rival, "e")
	if o.err != nil {
		t.Fatal(o.err)
	}
	c.Signal(syscall.SIGCONT)
	select {
	case line := <-c.Lines:
		t.Errorf("the child says %q while the rival leads", line)
	case <-time.After(fleetTTL / 2): // long enough for what it has read
	}
	if err := rival.Release(deadline(t), "e", o.record.Token); err != nil {
		t.Fatal(err)
	}
	if token := c.Says("leads"); token <= o.record.Token {
		t.Errorf("the child leads with token %d after %d", token, o.record.Token)
	}
	c.End()
	c.Says("stopped")
}
