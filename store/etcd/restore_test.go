package etcd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gotenure/tenure/internal/testserver"
)

// The server is given the data that it had before, with which revisions go back. Who holds nothing any more is told so, not believed until the old revision comes again, and who
// waits in a queue that is not there any more takes a place anew.
func TestDataTakenBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, backup := filepath.Join(dir, "data"), filepath.Join(dir, "backup")
	server := testserver.StartEtcd(t, "--data-dir="+data)
	s := openStore(t, server.URL())
	holder, waiter := openSession(t, s, "holder", time.Hour), openSession(t, s, "waiter", time.Hour)
	server.Kill()
	if err := os.CopyFS(backup, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	server.Start()

	renewed(t, holder) // through a connection that is new
	for range 20 {     // so that what follows does not bring the old revision again
		if err := holder.Release(deadline(t), "e", acquire(t, holder, "e").Token); err != nil {
			t.Fatal(err)
		}
	}
	held := acquire(t, holder, "e")
	queue(t, waiter, "e")
	won := campaign(t, waiter, "e")
	if grant := renewed(t, holder); grant.Holds != nil {
		t.Fatalf("Holds is %v before the data are taken back", grant.Holds)
	}
	renewed(t, waiter)

	server.Kill()
	if err := os.Rename(data, filepath.Join(dir, "lost")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(backup, data); err != nil {
		t.Fatal(err)
	}
	server.Start()
	if grant := renewed(t, holder); grant.Holds == nil || grant.Holds["e"] != 0 {
		t.Errorf("Holds is %v; want that e, with token %d, is lost", grant.Holds, held.Token)
	}
	renewed(t, waiter)
	if o := <-won; o.err != nil || o.record.Session != waiter.ID() {
		t.Errorf("the candidate of a queue that is gone: %+v", o)
	}
}

// The connection breaks for a moment, and there is another server with less data behind it: a watch tells what that has, and does not wait for the revision that the other had.
func TestWatchOfOtherData(t *testing.T) {
	t.Parallel()
	old, fresh := testserver.StartEtcd(t), testserver.StartEtcd(t)
	proxy := testserver.StartProxy(t, old.Addr())
	s := openStore(t, proxy.URL(old.URL()))
	before := openSession(t, openStore(t, old.URL()), "before", time.Hour)
	for range 20 { // so that the revisions are far apart
		if err := before.Release(deadline(t), "e", acquire(t, before, "e").Token); err != nil {
			t.Fatal(err)
		}
	}
	acquire(t, before, "e")
	after := openSession(t, openStore(t, fresh.URL()), "after", time.Hour)
	want := acquire(t, after, "e")
	states := statesOf(t, s, "e")
	if r := <-states; r.Session != before.ID() {
		t.Fatalf("the watch begins with %+v", r)
	}
	time.Sleep(100 * time.Millisecond) // it waits for the next state
	proxy.Target(fresh.Addr())
	proxy.Drop()
	eventually(t, func() string {
		select {
		case r := <-states:
			if r.Session == after.ID() && r.Token == want.Token {
				return ""
			}
			return fmt.Sprintf("the watch tells %+v", r)
		default:
			return "the watch tells nothing"
		}
	})
}
