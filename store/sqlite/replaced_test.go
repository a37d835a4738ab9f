//go:build linux

package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/sqlite"
)

func init() {
	roles["leader"] = leader
}

// leader leads until a renewal says that all is lost, says so, and stays, as a process does that has other things to do.
func leader(ctx context.Context, path string, args []string) error {
	ttl, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	store, err := sqlite.New(ctx, path, sqlite.Options{})
	if err != nil {
		return err
	}
	s, err := store.Open(ctx, "leader", ttl)
	if err != nil {
		return err
	}
	r, err := s.Acquire(ctx, driver.Bid{Election: "e"})
	if err != nil {
		return err
	}
	fmt.Println("leads", r.Token)
	for {
		time.Sleep(ttl / 3) // the interval of renewals
		sent := time.Now()
		_, err := s.KeepAlive(ctx)
		if errors.Is(err, driver.ErrSessionLost) {
			// Which was valid until a TTL after the last renewal was sent.
			fmt.Println("lost", time.Now().UnixNano())
			<-ctx.Done()
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		fmt.Println("renewed", sent.UnixNano())
	}
}

// replacements are what somebody may do to a file that is in use.
var replacements = map[string]func(t *testing.T, path string){
	"deleted": func(t *testing.T, path string) {
		for _, suffix := range []string{"", "-wal", "-shm"} {
			if err := os.Remove(path + suffix); err != nil {
				t.Fatal(err)
			}
		}
	},
	"deleted without its log": func(t *testing.T, path string) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	},
	"log deleted": func(t *testing.T, path string) {
		if err := os.Remove(path + "-wal"); err != nil {
			t.Fatal(err)
		}
	},
	"log and index deleted": func(t *testing.T, path string) {
		for _, suffix := range []string{"-wal", "-shm"} {
			if err := os.Remove(path + suffix); err != nil {
				t.Fatal(err)
			}
		}
	},
	"replaced by a copy": func(t *testing.T, path string) {
		// A copy from before anybody led.
		copied := filepath.Join(t.TempDir(), "copy.db")
		if err := open(t, copied).Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(copied, path); err != nil {
			t.Fatal(err)
		}
	},
	"replaced by a copy with everything": func(t *testing.T, path string) {
		copied := filepath.Join(t.TempDir(), "copy.db")
		store := openFor(t, copied)
		defer store.Close()
		for _, suffix := range []string{"", "-wal", "-shm"} {
			content, err := os.ReadFile(copied + suffix)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path+".new"+suffix, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, suffix := range []string{"", "-wal", "-shm"} {
			if err := os.Rename(path+".new"+suffix, path+suffix); err != nil {
				t.Fatal(err)
			}
		}
	},
	"moved without its log": func(t *testing.T, path string) {
		if err := os.Rename(path, path+".old"); err != nil {
			t.Fatal(err)
		}
	},
}

// When the file goes away under a leader, it is told at its next renewal, and nobody leads in the new file before.
func TestReplacedUnderTheLeader(t *testing.T) {
	t.Parallel()
	for how, replace := range replacements {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "tenure.db")
			p := start(t, "leader", path, "3s")
			before, err := strconv.ParseUint(p.expect("leads"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			p.expect("renewed")
			replace(t, path)
			replaced := time.Now()

			// A newcomer tries, as the core does, until it leads.
			ctx := within(t, patience)
			var r driver.Record
			for attempt := 1; ; attempt++ {
				var store *sqlite.Store
				store, err = sqlite.New(ctx, path, sqlite.Options{})
				if err == nil {
					var s driver.Session
					s, err = store.Open(ctx, "newcomer", time.Minute)
					if err == nil {
						r, err = campaign(ctx, s, "e")
					}
				}
				won := time.Now()
				if store != nil {
					defer store.Close()
				}
				if err == nil {
					lost, err := strconv.ParseInt(p.expect("lost"), 10, 64)
					if err != nil {
						t.Fatal(err)
					}
					t.Logf("told after %v, succeeded after %v and %d attempts, token %d after %d", time.Unix(0, lost).Sub(replaced), won.Sub(replaced), attempt, r.Token, before)
					if won.Before(time.Unix(0, lost)) {
						t.Errorf("two led: one since %v, the other was told at %v", won, time.Unix(0, lost))
					}
					if told := time.Unix(0, lost).Sub(replaced); told > 3*time.Second {
						t.Errorf("the leader was told after %v; want it at the next renewal", told)
					}
					break
				}
				t.Log(err)
				if ctx.Err() != nil {
					t.Fatalf("nobody leads: %v", err)
				}
				time.Sleep(100 * time.Millisecond) // between two attempts
			}
			if r.Token <= before && how != "log deleted" && how != "log and index deleted" {
				t.Errorf("token %d after %d", r.Token, before)
			}
			p.kill()
			_ = p.ended()
			integrity(t, path)
		})
	}
}

// stoppedLeader returns a file that was replaced under a leader that is stopped.
func stoppedLeader(t *testing.T, how string) (path string, p *process) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "tenure.db")
	p = start(t, "leader", path, "3s")
	p.expect("renewed")
	p.signal(syscall.SIGSTOP)
	replacements[how](t, path)
	return path, p
}

// A leader that is stopped when the file is deleted may wake up and believe in its lease: nobody else leads until it is gone, and errors say who is waited for.
func TestDeletedUnderAStoppedLeader(t *testing.T) {
	t.Parallel()
	path, p := stoppedLeader(t, "deleted")
	store := openFor(t, path)
	_, err := store.Open(within(t, time.Second), "newcomer", time.Minute)
	pid := strconv.Itoa(p.cmd.Process.Pid)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), pid) || !strings.Contains(err.Error(), "deleted") {
		t.Fatalf("Open: %v; want it to wait for process %s", err, pid)
	}
	t.Log(err)
	p.kill()
	session(t, store, "newcomer", time.Minute)
}

// A leader that is stopped when a copy takes the file's place still uses the log that lies beside the copy now: nobody opens the two together.
func TestCopiedUnderAStoppedLeader(t *testing.T) {
	t.Parallel()
	path, p := stoppedLeader(t, "replaced by a copy")
	_, err := sqlite.New(within(t, time.Second), path, sqlite.Options{})
	pid := strconv.Itoa(p.cmd.Process.Pid)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), pid) || !strings.Contains(err.Error(), "stopped") {
		t.Fatalf("New: %v; want it to wait for process %s", err, pid)
	}
	t.Log(err)
	p.signal(syscall.SIGCONT)
	acquire(t, session(t, openFor(t, path), "newcomer", time.Minute), "e")
	p.expect("lost")
	integrity(t, path)
}

// The same within one process: its store goes on with the new file by itself.
func TestReplacedUnderTheStore(t *testing.T) {
	t.Parallel()
	for how, replace := range replacements {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "tenure.db")
			store := openFor(t, path)
			const ttl = 2 * time.Second
			old := session(t, store, "m", ttl)
			before := acquire(t, old, "e")
			sent := time.Now()
			if _, err := old.KeepAlive(within(t, patience)); err != nil {
				t.Fatal(err)
			}
			index, err := os.Stat(path + "-shm")
			if err != nil {
				t.Fatal(err)
			}
			replace(t, path)
			if _, err := old.KeepAlive(within(t, patience)); !errors.Is(err, driver.ErrSessionLost) {
				t.Fatalf("KeepAlive: %v; want ErrSessionLost", err)
			}
			var r driver.Record
			for deadline := time.Now().Add(patience); ; {
				s, err := store.Open(within(t, patience), "m", time.Minute)
				if err == nil {
					r, err = campaign(within(t, patience), s, "e")
				}
				if err == nil {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal(err)
				}
				t.Log(err)
				time.Sleep(50 * time.Millisecond) // between two attempts
			}
			if took := time.Since(sent); took < ttl-50*time.Millisecond {
				t.Errorf("the next term began %v after a renewal for %v", took, ttl)
			}
			if r.Token <= before.Token && how != "log deleted" && how != "log and index deleted" {
				t.Errorf("token %d after %d", r.Token, before.Token)
			}
			if now, err := os.Stat(path + "-shm"); err != nil || os.SameFile(now, index) && how != "log deleted" {
				t.Errorf("the new file has the old one's index (%v): who has the old one open reads it as the new one's index says", err)
			}
			if _, err := old.KeepAlive(within(t, patience)); !errors.Is(err, driver.ErrSessionLost) {
				t.Errorf("KeepAlive of the lost session: %v", err)
			}
			integrity(t, path)
		})
	}
}

// What cannot be opened any more is lost all the same, and comes back with its directory. A file that is put back revives no session.
func TestDirectoryRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "tenure.db")
	store := openFor(t, path)
	s := session(t, store, "m", time.Second)
	token := acquire(t, s, "e").Token
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	_, err := s.KeepAlive(within(t, patience))
	if !errors.Is(err, driver.ErrSessionLost) || !strings.Contains(err.Error(), path) {
		t.Fatalf("KeepAlive: %v; want ErrSessionLost with the file", err)
	}
	t.Log(err)
	if _, err := store.Open(within(t, patience), "m", time.Minute); err == nil || !strings.Contains(err.Error(), "create its directory") {
		t.Errorf("Open: %v; want an error that says what to do", err)
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	if _, err := s.KeepAlive(within(t, patience)); !errors.Is(err, driver.ErrSessionLost) {
		t.Errorf("KeepAlive after the file came back: %v; want ErrSessionLost for ever", err)
	}
	r, err := campaign(within(t, patience), session(t, store, "m", time.Minute), "e")
	if err != nil {
		t.Fatal(err)
	}
	if r.Token <= token {
		t.Errorf("token %d after %d", r.Token, token)
	}
}
