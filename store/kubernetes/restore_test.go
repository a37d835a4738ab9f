package kubernetes_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
)

// The cluster's etcd is given the data that it had before, with which versions go back. Who waits in the same process follows what is there now, and leads when the holder that came
// back with the data is dead, or when the Lease is not there any more.
func TestDataTakenBack(t *testing.T) {
	t.Parallel()
	server := testserver.StartKubernetes(t)
	backup := filepath.Join(t.TempDir(), "backup")
	restart := func(replace func()) {
		server.Kill()
		server.KillEtcd()
		replace()
		server.StartEtcd()
		server.Start()
	}
	store := open(t, server.URL())
	holder, err := store.Open(t.Context(), "holder", 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	held := acquire(t, holder, "held")
	restart(func() {
		if err := os.CopyFS(backup, os.DirFS(server.EtcdDataDir())); err != nil {
			t.Fatal(err)
		}
	})

	waiter, err := store.Open(t.Context(), "waiter", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	made := acquire(t, openSession(t, store, "maker"), "made")
	for range 20 { // so that what follows does not bring the old versions again
		acquire(t, holder, "held")
	}
	won := make(map[string]chan driver.Record)
	for _, election := range []string{"held", "made"} {
		if _, err := waiter.Acquire(t.Context(), driver.Bid{Election: election, Queue: true}); !errors.Is(err, driver.ErrHeld) {
			t.Fatal(err)
		}
		c := make(chan driver.Record, 1)
		won[election] = c
		go func() {
			for t.Context().Err() == nil {
				err := waiter.Await(t.Context(), election)
				if err == nil {
					var r driver.Record
					if r, err = waiter.Acquire(t.Context(), driver.Bid{Election: election, Queue: true}); err == nil {
						c <- r
						return
					}
				}
				time.Sleep(20 * time.Millisecond) // as package tenure backs off
			}
		}()
	}
	restart(func() {
		if err := errors.Join(os.RemoveAll(server.EtcdDataDir()), os.CopyFS(server.EtcdDataDir(), os.DirFS(backup))); err != nil {
			t.Fatal(err)
		}
	})
	for election, c := range won {
		select {
		case r := <-c:
			t.Logf("%s: token %d", election, r.Token)
		case <-time.After(patience + 30*time.Second):
			t.Errorf("nobody leads %s after the data were taken back; before, tokens were %s", election, fmt.Sprint(held.Token, " and ", made.Token))
		}
	}
}
