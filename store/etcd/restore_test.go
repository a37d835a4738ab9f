package etcd_test

import (
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
