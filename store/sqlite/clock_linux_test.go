package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/sqlite"
)

func init() {
	roles["holder"] = holder
}

// After the machine was restarted nobody who had a session is left, so everything is vacant at once, with its token.
func TestRestartEndsSessions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenure.db")
	store := open(t, path)
	s := session(t, store, "m", time.Hour)
	before := acquire(t, s, "e")
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	execute(t, path, "UPDATE tenure_clock SET boot = 'another'")
	// The wall clock of the machine may be wrong until it has asked somebody.
	execute(t, path, "UPDATE tenure_clock SET base = base + 7200000000")

	store = openFor(t, path)
	if r, err := store.Get(within(t, patience), "e"); err != nil || r.Held() || r.Token != before.Token {
		t.Errorf("Get after the restart: %+v, %v; want it vacant with token %d", r, err, before.Token)
	}
	after := acquire(t, session(t, store, "m", time.Hour), "e")
	if after.Token <= before.Token {
		t.Errorf("token %d after %d", after.Token, before.Token)
	}
	checkExpiry(t, after.ExpiresAt, time.Hour)
}

// When somebody sets the wall clock, leases last as long as they would have, and the times in the file follow.
func TestWallClockIsSet(t *testing.T) {
	for _, step := range []time.Duration{-36 * time.Hour, 36 * time.Hour} {
		path := filepath.Join(t.TempDir(), "tenure.db")
		store := openFor(t, path)
		s := session(t, store, "m", time.Minute)
		other := session(t, store, "other", time.Hour)
		held := acquire(t, s, "e")
		otherHeld := acquire(t, other, "of another")
		// The file looks as if the wall clock had been otherwise until now.
		µs := strconv.FormatInt(step.Microseconds(), 10)
		execute(t, path, "UPDATE tenure_clock SET base = base + "+µs)
		execute(t, path, "UPDATE tenure_sessions SET opened_at = opened_at + "+µs+", expires_at = expires_at + "+µs)

		if r, err := store.Get(within(t, patience), "e"); err != nil || r.Token != held.Token || !r.Held() {
			t.Errorf("Get after a step of %v: %+v, %v; want it held", -step, r, err)
		}
		if _, err := s.KeepAlive(within(t, patience)); err != nil {
			t.Fatalf("KeepAlive after a step of %v: %v", -step, err)
		}
		r, err := store.Get(within(t, patience), "e")
		if err != nil || r.Token != held.Token {
			t.Errorf("Get after a step of %v and a renewal: %+v, %v; want token %d", -step, r, err, held.Token)
		}
		checkExpiry(t, r.ExpiresAt, time.Minute)
		// And so do the sessions that nobody has renewed meanwhile.
		if r, err = store.Get(within(t, patience), "of another"); err != nil || r.Token != otherHeld.Token {
			t.Errorf("Get after a step of %v: %+v, %v", -step, r, err)
		}
		checkExpiry(t, r.ExpiresAt, time.Hour)
	}
}

func checkExpiry(t *testing.T, at time.Time, ttl time.Duration) {
	t.Helper()
	if remaining := time.Until(at); remaining > ttl+time.Second || remaining < ttl-patience {
		t.Errorf("the session expires in %v by the wall clock; want %v", remaining, ttl)
	}
}

// holder holds an election for a minute.
func holder(ctx context.Context, path string, _ []string) error {
	store, err := sqlite.New(ctx, path, sqlite.Options{})
	if err != nil {
		return err
	}
	s, err := store.Open(ctx, "holder", time.Minute)
	if err != nil {
		return err
	}
	r, err := s.Acquire(ctx, driver.Bid{Election: "e"})
	if errors.Is(err, driver.ErrHeld) {
		fmt.Println("refused")
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Println("holds", r.Token)
	_, err = heard(bufio.NewReader(os.Stdin))
	return err
}

// Processes in time namespaces with clocks of their own, as in some containers, agree when a lease ends.
func TestTimeNamespaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenure.db")
	inNamespace := func(boottime string) func(*exec.Cmd) {
		return func(cmd *exec.Cmd) {
			args := []string{"unshare", "--time", "--boottime", boottime, "--fork", "--kill-child"}
			if os.Getuid() != 0 {
				args = append(args, "--user", "--map-root-user")
			}
			unshare, err := exec.LookPath("unshare")
			if err != nil {
				t.Fatal(err)
			}
			cmd.Args, cmd.Path = append(args, os.Args[0]), unshare
		}
	}
	ahead := startWith(t, inNamespace("1000000"), "holder", path)
	ahead.expect("holds")
	store := openFor(t, path)
	r, err := store.Get(within(t, patience), "e")
	if err != nil || !r.Held() {
		t.Fatalf("Get: %+v, %v; want it held by a process whose clock is ahead", r, err)
	}
	checkExpiry(t, r.ExpiresAt, time.Minute)
	startWith(t, inNamespace("2000000"), "holder", path).expect("refused")
	if _, err := session(t, store, "m", time.Minute).Acquire(within(t, patience), driver.Bid{Election: "e"}); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Acquire: %v; want ErrHeld", err)
	}
}
