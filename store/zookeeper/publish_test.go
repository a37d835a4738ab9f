package zookeeper_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/zookeeper"
)

// What is published later replaces what the leader's node says, in that leader's term and in no other, and no candidate's node is ever written again.
func TestPublishedLater(t *testing.T) {
	t.Parallel()
	storeURL := testserver.ZooKeeperURL(t)
	store, operator := use(t, storeURL), connect(t, storeURL)
	const election = "published/later"
	dir := zookeeper.Path(election)
	deleteElection(t, operator, election)
	first, second := openSession(t, store, "first", 6*time.Second), openSession(t, store, "second", 6*time.Second)
	bid := func(s driver.Session, value string) (driver.Record, error) {
		return s.Acquire(deadline(t), driver.Bid{Election: election, Value: []byte(value), Queue: true})
	}
	check := func(leader, value string) {
		t.Helper()
		r, err := store.Get(deadline(t), election)
		if err != nil || r.Leader != leader || string(r.Value) != value {
			t.Errorf("the record is %+v, %v; want %q of %s", r, err, value, leader)
		}
		for r, err := range store.List(deadline(t), election) {
			if err != nil || r.Election != election || r.Leader != leader || string(r.Value) != value {
				t.Errorf("listed is %+v, %v; want %q of %s", r, err, value, leader)
			}
		}
		children, _, err := operator.Children(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, child := range children {
			if _, stat, err := operator.Get(dir + "/" + child); err != nil || stat.Version != 0 {
				t.Errorf("node %s: %+v, %v; want it never written", child, stat, err)
			}
		}
	}

	term, err := bid(first, "a")
	if err != nil {
		t.Fatal(err)
	}
	check("first", "a")
	watching, stop := context.WithCancel(deadline(t))
	defer stop()
	seen := make(chan string, 100)
	go func() {
		for r, err := range store.Watch(watching, election) {
			if err == nil {
				seen <- r.Leader + " " + string(r.Value)
			}
		}
	}()
	sees := func(want string) {
		t.Helper()
		for {
			select {
			case got := <-seen:
				if got == want {
					return
				}
			case <-time.After(patience):
				t.Fatalf("a watch does not see %q", want)
			}
		}
	}
	sees("first a")
	if _, err := bid(second, "b"); !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("%v; want ErrHeld", err)
	}
	for _, value := range []string{"more", "", "a", "last"} {
		if r, err := bid(first, value); err != nil || r.Token != term.Token || string(r.Value) != value {
			t.Fatalf("publish %q: %+v, %v", value, r, err)
		}
		check("first", value)
		sees("first " + value)
	}
	if r, err := bid(second, "c"); !errors.Is(err, driver.ErrHeld) || string(r.Value) != "last" {
		t.Errorf("refused with %+v, %v; want the value %q", r, err, "last")
	}
	if err := first.Release(deadline(t), election, term.Token); err != nil {
		t.Fatal(err)
	}
	check("second", "b") // which has not heard of it yet
	if _, err := bid(second, "b"); err != nil {
		t.Fatal(err)
	}
	check("second", "b")
	sees("second b")
	if _, err := bid(second, "c"); err != nil {
		t.Fatal(err)
	}
	check("second", "c")
	sees("second c")
}
