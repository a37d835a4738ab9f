//go:build linux

package sqlite_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/sqlite"
)

func init() {
	roles["disk full"] = diskFull
	roles["read only"] = readOnly
	roles["no permission"] = noPermission
}

// A file system of its own is mounted by a process in a mount namespace, which takes it away when it ends. A user namespace makes that possible for everybody.
func apart(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
}

func mountTmpfs(dir, options string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		return fmt.Errorf("mount a tmpfs at %s: %w", dir, err)
	}
	return nil
}

// A full disk is an error that says so. Nothing is lost, and all goes on when there is space.
func TestDiskFull(t *testing.T) {
	startWith(t, apart, "disk full", t.TempDir()).expect("done")
}

func diskFull(ctx context.Context, dir string, _ []string) error {
	if err := mountTmpfs(dir, "size=1m"); err != nil {
		return err
	}
	path := filepath.Join(dir, "tenure.db")
	store, err := sqlite.New(ctx, path, sqlite.Options{})
	if err != nil {
		return err
	}
	s, err := store.Open(ctx, "m", time.Minute)
	if err != nil {
		return err
	}
	held, err := s.Acquire(ctx, driver.Bid{Election: "e", Value: []byte("v")})
	if err != nil {
		return err
	}
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 2<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("filling the disk: %w; want ENOSPC", err)
	}
	failed := false
	for i := 0; i < 100 && !failed; i++ {
		_, err := s.Acquire(ctx, driver.Bid{Election: fmt.Sprint("big", i), Value: make([]byte, 64<<10)})
		switch {
		case err == nil:
		case errors.Is(err, driver.ErrInvalid), errors.Is(err, driver.ErrSessionLost), errors.Is(err, driver.ErrHeld), errors.Is(err, driver.ErrCorrupt):
			return fmt.Errorf("Acquire on a full disk: %w; want an unknown outcome", err)
		case !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "free space"):
			return fmt.Errorf("Acquire on a full disk: %w; want it to name the file and the remedy", err)
		default:
			failed = true
		}
	}
	if !failed {
		return errors.New("the disk is full and everything can be written")
	}
	// A renewal may find room in the log or not. It is not lost.
	if _, err := s.KeepAlive(ctx); errors.Is(err, driver.ErrSessionLost) {
		return fmt.Errorf("KeepAlive on a full disk: %w", err)
	}
	if r, err := store.Get(ctx, "e"); err != nil || r.Token != held.Token || string(r.Value) != "v" {
		return fmt.Errorf("Get on a full disk: %+v, %w", r, err)
	}
	if err := os.Remove(filler); err != nil {
		return err
	}
	if grant, err := s.KeepAlive(ctx); err != nil || grant.Holds != nil {
		return fmt.Errorf("KeepAlive once there is space: %+v, %w", grant, err)
	}
	next, err := s.Acquire(ctx, driver.Bid{Election: "big", Value: make([]byte, 64<<10)})
	if err != nil {
		return err
	}
	if next.Token <= held.Token {
		return fmt.Errorf("token %d after %d", next.Token, held.Token)
	}
	if err := store.Close(); err != nil {
		return err
	}

	// A disk that is full from the start.
	if err := os.Mkdir(filepath.Join(dir, "new"), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filler, make([]byte, 2<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("filling the disk: %w; want ENOSPC", err)
	}
	fresh := filepath.Join(dir, "new", "tenure.db")
	if _, err := sqlite.New(ctx, fresh, sqlite.Options{}); err == nil || errors.Is(err, driver.ErrInvalid) ||
		!strings.Contains(err.Error(), fresh) || !strings.Contains(err.Error(), "free space") {
		return fmt.Errorf("New on a full disk: %w; want an error that can be tried again, with the file and the remedy", err)
	}
	if err := os.Remove(filler); err != nil {
		return err
	}
	store, err = sqlite.New(ctx, fresh, sqlite.Options{})
	if err != nil {
		return fmt.Errorf("New once there is space: %w", err)
	}
	fmt.Println("done")
	return store.Close()
}

// What cannot be written is refused when it is opened, and an error when it happens later: then it may be mended.
func TestReadOnly(t *testing.T) {
	startWith(t, apart, "read only", t.TempDir()).expect("done")
}

func readOnly(ctx context.Context, dir string, _ []string) error {
	if err := mountTmpfs(dir, ""); err != nil {
		return err
	}
	mode := func(flags uintptr) error {
		return syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_BIND|flags, "")
	}
	path := filepath.Join(dir, "tenure.db")
	store, err := sqlite.New(ctx, path, sqlite.Options{})
	if err != nil {
		return err
	}
	s, err := store.Open(ctx, "m", time.Minute)
	if err != nil {
		return err
	}
	held, err := s.Acquire(ctx, driver.Bid{Election: "e"})
	if err != nil {
		return err
	}
	if err := store.Close(); err != nil {
		return err
	}
	if err := mode(syscall.MS_RDONLY); err != nil {
		return fmt.Errorf("mount read-only: %w", err)
	}
	for _, name := range []string{path, filepath.Join(dir, "new.db")} {
		_, err := sqlite.New(ctx, name, sqlite.Options{})
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "mounted for writing") {
			return fmt.Errorf("New of %s on a read-only file system: %w; want ErrInvalid with the file and the remedy", name, err)
		}
		fmt.Println(err)
	}
	if err := mode(0); err != nil {
		return fmt.Errorf("mount for writing: %w", err)
	}
	if store, err = sqlite.New(ctx, path, sqlite.Options{}); err != nil {
		return err
	}
	if r, err := store.Get(ctx, "e"); err != nil || r.Token != held.Token || !r.Held() {
		return fmt.Errorf("Get afterwards: %+v, %w; want token %d", r, err, held.Token)
	}
	fmt.Println("done")
	return store.Close()
}

// A user who may not write the file, or make files beside it, is told.
func TestNoPermission(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tenure.db")
	open(t, path).Close()
	for name, modes := range map[string][2]os.FileMode{
		"file": {0o777, 0o444}, "directory": {0o555, 0o666},
	} {
		if err := os.Chmod(path, modes[1]); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, modes[0]); err != nil {
			t.Fatal(err)
		}
		// The parents of a test's directory are for its user alone, so the process goes there before it becomes another.
		p := start(t, "no permission", path)
		t.Logf("%s: %s", name, p.expect("refused"))
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
}

func noPermission(ctx context.Context, path string, _ []string) error {
	if err := os.Chdir(filepath.Dir(path)); err != nil {
		return err
	}
	if os.Getuid() == 0 {
		// Root may do everything. Whoever is not root is tested as what he is.
		for dir := filepath.Dir(filepath.Dir(path)); dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o755); err != nil {
				return err
			}
		}
		if err := syscall.Setgroups(nil); err != nil {
			return err
		}
		if err := syscall.Setgid(65534); err != nil {
			return err
		}
		if err := syscall.Setuid(65534); err != nil {
			return err
		}
	}
	_, err := sqlite.New(ctx, path, sqlite.Options{})
	if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "must be allowed to write") {
		return fmt.Errorf("New without permission: %w; want ErrInvalid with the file and the remedy", err)
	}
	fmt.Println("refused", err)
	return nil
}

func TestUnusableFiles(t *testing.T) {
	dir := t.TempDir()
	made := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := filepath.Join(dir, "good.db")
	store := open(t, good)
	acquire(t, session(t, store, "m", time.Minute), "e")
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	newer := made("newer.db", content)
	execute(t, newer, "UPDATE tenure_meta SET version = 7")
	unversioned := made("unversioned.db", content)
	execute(t, unversioned, "DELETE FROM tenure_meta")

	for _, c := range []struct {
		path  string
		opts  sqlite.Options
		want  error
		parts []string
	}{
		{"", sqlite.Options{}, driver.ErrInvalid, []string{"empty"}},
		{dir, sqlite.Options{}, driver.ErrInvalid, []string{"file"}},
		{filepath.Join(dir, "missing", "tenure.db"), sqlite.Options{}, driver.ErrInvalid, []string{"create its directory"}},
		{filepath.Join(dir, "missing.db"), sqlite.Options{NoCreate: true}, driver.ErrInvalid, []string{"does not exist", "tenure store init"}},
		{made("empty.db", nil), sqlite.Options{NoCreate: true}, driver.ErrInvalid, []string{"no tables", "tenure store init"}},
		{made("text.db", []byte(strings.Repeat("no database at all\n", 1000))), sqlite.Options{}, driver.ErrInvalid, []string{"is no SQLite database"}},
		{made("damaged.db", append(bytes.Clone(content[:4096]), bytes.Repeat([]byte("garbage"), (len(content)-4096)/7)...)), sqlite.Options{}, driver.ErrCorrupt, []string{".recover"}},
		{made("short.db", content[:6000]), sqlite.Options{}, driver.ErrCorrupt, []string{".recover"}},
		{newer, sqlite.Options{}, driver.ErrInvalid, []string{"version 7", "version 1"}},
		{unversioned, sqlite.Options{}, driver.ErrInvalid, []string{"tenure_meta", "version 1"}},
	} {
		store, err := sqlite.New(context.Background(), c.path, c.opts)
		if err == nil {
			// Damage may be where opening does not look. Then whoever reads it is told.
			for _, failed := range store.List(context.Background(), "") {
				err = failed
			}
			if err == nil {
				_, err = store.Open(context.Background(), "m", time.Minute)
			}
			store.Close()
		}
		if !errors.Is(err, c.want) {
			t.Errorf("New(%q): %v; want %v", c.path, err, c.want)
			continue
		}
		t.Log(err)
		for _, part := range append(c.parts, c.path) {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("New(%q): %q; want it to mention %q", c.path, err, part)
			}
		}
	}
	for _, path := range []string{"missing.db", "text.db-wal", "newer.db-wal"} {
		if _, err := os.Stat(filepath.Join(dir, path)); err == nil {
			t.Errorf("%s was made", path)
		}
	}
	if n := query(t, newer, "SELECT version FROM tenure_meta"); n != 7 {
		t.Errorf("the newer file has version %d now", n)
	}
}

// Rows that no store has written are reported by name, the others work.
func TestCorruptRows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenure.db")
	store := openFor(t, path)
	s := session(t, store, "m", time.Minute)
	for what, change := range map[string]string{
		"token":    "token = 'many'",
		"negative": "token = -3",
		"session":  "session = ''",
		"member":   "member = ''",
		"vacant":   "session = NULL",
		"zero":     "token = 0",
	} {
		acquire(t, s, what)
		execute(t, path, "UPDATE tenure_elections SET "+change+" WHERE name = ?", what)
		_, err := store.Get(within(t, patience), what)
		if !errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("Get with %s: %v; want ErrCorrupt", change, err)
			continue
		}
		for _, part := range []string{path, `"` + what + `"`, "tenure_elections", "correct or delete"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("Get with %s: %q; want it to mention %q", change, err, part)
			}
		}
		if _, err := s.Acquire(within(t, patience), driver.Bid{Election: what}); !errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("Acquire with %s: %v; want ErrCorrupt", change, err)
		}
	}
	acquire(t, s, "sound")
	sound := 0
	for r, err := range store.List(within(t, patience), "") {
		if err == nil && r.Election == "sound" {
			sound++
		} else if !errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("List: %+v, %v", r, err)
		}
	}
	if sound != 1 {
		t.Errorf("List yields the sound record %d times", sound)
	}
}

// Tables and rows that somebody removed or spoilt come back, and tokens go on.
func TestTablesRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenure.db")
	store := openFor(t, path)
	last := acquire(t, session(t, store, "m", time.Minute), "e").Token
	for _, removal := range []string{
		"DELETE FROM tenure_token", "DELETE FROM tenure_clock", "DROP TABLE tenure_token", "DROP TABLE tenure_clock", "DROP TABLE tenure_sessions",
		"DROP TABLE tenure_waiters", "UPDATE tenure_token SET last = 5", "UPDATE tenure_token SET last = 'nonsense'",
	} {
		execute(t, path, removal)
		var r driver.Record
		// What fails is to mend it for the next.
		for attempt := 1; ; attempt++ {
			s, err := store.Open(within(t, patience), "m", time.Minute)
			if err == nil {
				execute(t, path, "DELETE FROM tenure_sessions WHERE id <> '"+s.ID()+"'")
				r, err = s.Acquire(within(t, patience), driver.Bid{Election: "e"})
			}
			if err == nil {
				break
			}
			if attempt == 5 {
				t.Fatalf("after %s: %v", removal, err)
			}
		}
		if r.Token <= last {
			t.Errorf("after %s: token %d after %d", removal, r.Token, last)
		}
		last = r.Token
	}
}

// A relative path in a directory that was removed cannot be found.
func TestNoWorkingDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	_, err := sqlite.New(within(t, patience), "tenure.db", sqlite.Options{})
	if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "tenure.db") || !strings.Contains(err.Error(), "absolute") {
		t.Errorf("%v", err)
	}
}

// Without its clock the store does not blame a record.
func TestNoClock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenure.db")
	store := openFor(t, path)
	s := session(t, store, "m", time.Minute)
	acquire(t, s, "e")
	execute(t, path, "DELETE FROM tenure_clock")
	if _, err := store.Get(within(t, patience), "e"); err == nil || errors.Is(err, driver.ErrCorrupt) || !strings.Contains(err.Error(), "clock") {
		t.Errorf("Get: %v; want an error about the clock", err)
	}
}
