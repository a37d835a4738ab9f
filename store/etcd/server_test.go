package etcd_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/etcd"
)

// patience bounds every wait for something that must happen.
const patience = testserver.Patience

var deadline, eventually = testserver.Deadline, testserver.Eventually

// connect returns a client for what an operator does at the servers of a store URL without user and TLS.
func connect(t testing.TB, storeURL string) *clientv3.Client {
	t.Helper()
	hosts := strings.Split(strings.TrimPrefix(storeURL, "etcd://"), ",")
	c, err := clientv3.New(clientv3.Config{Endpoints: hosts, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// openStore opens a store and closes it at the end.
func openStore(t testing.TB, raw string) *etcd.Store {
	t.Helper()
	s := openStoreOnly(t, raw)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// openStoreOnly opens a store that its user closes.
func openStoreOnly(t testing.TB, raw string) *etcd.Store {
	t.Helper()
	s, err := etcd.Open(deadline(t), raw)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// openSession opens a session and closes it at the end, or leaves it to the server when that is gone.
func openSession(t testing.TB, s driver.Store, member string, ttl time.Duration) driver.Session {
	t.Helper()
	n, err := s.Open(deadline(t), member, ttl)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = n.Close(ctx)
	})
	return n
}

// acquire acquires what is vacant.
func acquire(t testing.TB, s driver.Session, election string) driver.Record {
	t.Helper()
	r, err := s.Acquire(deadline(t), driver.Bid{Election: election, Value: []byte("of " + s.ID()), Queue: true})
	if err != nil {
		t.Fatalf("Acquire(%q): %v", election, err)
	}
	return r
}

// queue takes a place in the queue of an election that another holds.
func queue(t testing.TB, s driver.Session, election string) driver.Record {
	t.Helper()
	r, err := s.Acquire(deadline(t), driver.Bid{Election: election, Value: []byte("of " + s.ID()), Queue: true})
	if !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("Acquire(%q): %v; want ErrHeld", election, err)
	}
	return r
}

type outcome struct {
	record driver.Record
	err    error
}

// campaign waits in the background until the session holds the election, through whatever fails, as package tenure does.
func campaign(t testing.TB, s driver.Session, election string) <-chan outcome {
	result := make(chan outcome, 1)
	ctx := deadline(t)
	go func() {
		for {
			call, cancel := context.WithTimeout(ctx, 2*time.Second)
			r, err := s.Acquire(call, driver.Bid{Election: election, Value: []byte("of " + s.ID()), Queue: true})
			cancel()
			if errors.Is(err, driver.ErrHeld) {
				err = s.Await(ctx, election)
				if err == nil {
					continue
				}
			}
			if err == nil || ctx.Err() != nil || errors.Is(err, driver.ErrSessionLost) {
				result <- outcome{r, err}
				return
			}
			time.Sleep(20 * time.Millisecond) // as package tenure backs off
		}
	}()
	return result
}

// statesOf watches an election until the test ends, through whatever fails.
func statesOf(t testing.TB, s *etcd.Store, election string) <-chan driver.Record {
	t.Helper()
	states := make(chan driver.Record, 16)
	watching, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() {
		for watching.Err() == nil {
			for r, err := range s.Watch(watching, election) {
				if err == nil {
					states <- r
				}
			}
		}
	}()
	return states
}

// renewed renews until it succeeds: the first attempts may meet connections that are dead.
func renewed(t testing.TB, s driver.Session) driver.Grant {
	t.Helper()
	var grant driver.Grant
	eventually(t, func() string {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		var err error
		grant, err = s.KeepAlive(ctx)
		if errors.Is(err, driver.ErrSessionLost) {
			t.Fatal(err)
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
	return grant
}

// leading returns the key at the head of the queue.
func leading(t testing.TB, c *clientv3.Client, election string) *mvccpb.KeyValue {
	t.Helper()
	r := must(c.Get(deadline(t), election+"/", clientv3.WithFirstCreate()...))(t)
	if len(r.Kvs) == 0 {
		t.Fatalf("nobody leads %q", election)
	}
	return r.Kvs[0]
}

// overwrite makes another live session the leader, as an operator could by hand.
func overwrite(t testing.TB, c *clientv3.Client, election, session string) {
	t.Helper()
	must(c.Delete(deadline(t), election+"/", clientv3.WithPrefix()))(t)
	must(c.Put(deadline(t), election+"/"+session, "", clientv3.WithLease(leaseOf(t, session))))(t)
}

func leaseOf(t testing.TB, session string) clientv3.LeaseID {
	t.Helper()
	id, err := strconv.ParseInt(session, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return clientv3.LeaseID(id)
}

// must returns a function that ends the test when an operator's call has failed: must(call())(t).
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
