//go:build linux

package sqlite_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/sqlite"
)

// Other machines cannot take part, so a file that they may see is refused, unless the user knows better.
func TestNetworkFileSystems(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenure.db")
	ctx := context.Background()

	restore := sqlite.OnFileSystem(sqlite.NFS)
	defer restore()
	_, err := sqlite.New(ctx, path, sqlite.Options{})
	if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "NFS") || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "network=allow") {
		t.Errorf("New on NFS: %v; want ErrInvalid with kind, file and remedy", err)
	}
	for kind, opts := range map[int64]sqlite.Options{sqlite.NFS: {AllowNetwork: true}, sqlite.FUSE: {}} {
		sqlite.OnFileSystem(kind)
		var log bytes.Buffer
		opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
		store, err := sqlite.New(ctx, path, opts)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(log.String(), "other machines") || !strings.Contains(strings.Join(store.Info().Caveats, " "), "other machines") {
			t.Errorf("kind %x: no warning in the log (%s) or the caveats (%q)", kind, &log, store.Info().Caveats)
		}
		store.Close()
	}
	restore()
	store := openFor(t, path)
	if caveats := strings.Join(store.Info().Caveats, " "); strings.Contains(caveats, "other machines") {
		t.Errorf("a local file has the caveats %q", caveats)
	}
}

// One renewal renews all that a member holds, in as many statements as for one.
func TestTenThousandElections(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	store := openFor(t, path)
	s := session(t, store, "m", 5*time.Minute)
	ctx := within(t, 5*time.Minute)
	var statements [2][]string
	const elections = 10_000
	for i := range elections {
		if _, err := s.Acquire(ctx, driver.Bid{Election: fmt.Sprint("e", i)}); err != nil {
			t.Fatal(err)
		}
		if i == 0 || i == elections-1 {
			list := &statements[min(i, 1)]
			if err := store.Trace(list); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			grant, err := s.KeepAlive(ctx)
			if err != nil || grant.Holds != nil {
				t.Fatalf("KeepAlive: %v; the store's view differs: %t", err, grant.Holds != nil)
			}
			t.Logf("%d elections: renewed in %v with %d statements", i+1, time.Since(begin), len(*list))
			if err := store.Trace(new([]string)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !slices.Equal(statements[0], statements[1]) {
		t.Errorf("a renewal of one election:\n%q\nof %d:\n%q", statements[0], elections, statements[1])
	}
	updates := 0
	for _, statement := range statements[1] {
		if !strings.HasPrefix(statement, "SELECT") && statement != "BEGIN IMMEDIATE" && statement != "COMMIT" {
			updates++
		}
	}
	if updates != 1 {
		t.Errorf("%d statements write; want 1:\n%q", updates, statements[1])
	}
	// Freeing them is one transaction too.
	begin := time.Now()
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("freed in %v", time.Since(begin))
}

// Closing ends whatever is under way, and does not take long.
func TestCloseWhileBusy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenure.db")
	store := open(t, path)
	s, err := store.Open(within(t, patience), "m", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, "writer", path)
	p.expect("writing")
	failed := make(chan error, 1)
	go func() {
		_, err := s.Acquire(context.Background(), driver.Bid{Election: "e"})
		failed <- err
	}()
	time.Sleep(50 * time.Millisecond) // so that Acquire is waiting for the lock, most often
	begin := time.Now()
	if err := store.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("Close took %v", took)
	}
	select {
	case err := <-failed:
		if err == nil {
			t.Error("Acquire succeeded while another process was in the middle of a write")
		}
	case <-time.After(patience):
		t.Error("Acquire does not return")
	}
}

// The printed schema makes what the store accepts as its own.
func TestSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenure.db")
	open(t, path).Close()
	made := filepath.Join(t.TempDir(), "made.db")
	open(t, made).Close() // only to have a file
	for _, table := range []string{"meta", "sessions", "elections", "waiters", "token", "clock"} {
		execute(t, made, "DROP TABLE tenure_"+table)
	}
	execute(t, made, "DROP VIEW tenure_status")
	db := database(t, made)
	if err := db.Exec(sqlite.Schema()); err != nil {
		t.Fatal(err)
	}
	db.Close()
	const all = "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'tenure_%'"
	if got, want := query(t, made, all), query(t, path, all); got != want {
		t.Errorf("the printed schema makes %d tables, indexes and views; the store %d", got, want)
	}
	store := openFor(t, made)
	acquire(t, session(t, store, "m", time.Minute), "e")
	if n := query(t, made, "SELECT count(*) FROM tenure_status WHERE election = 'e' AND leader = 'm' AND expires_at > datetime('now')"); n != 1 {
		t.Errorf("the view for people shows %d rows of the election", n)
	}
}
