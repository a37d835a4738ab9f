//go:build linux

package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/sqlite"
	"github.com/ncruces/go-sqlite3"
)

func init() {
	roles["opener"] = opener
	roles["waiter"] = waiter
	roles["cycler"] = cycler
	roles["writer"] = writer
	roles["locker"] = locker
	roles["idler"] = idler
}

// opener opens a session, and says so, as soon as it is told to.
func opener(ctx context.Context, path string, _ []string) error {
	fmt.Println("ready")
	if _, err := heard(bufio.NewReader(os.Stdin)); err != nil {
		return err
	}
	store, err := sqlite.New(ctx, path, sqlite.Options{})
	if err != nil {
		return err
	}
	s, err := store.Open(ctx, "opener", time.Minute)
	if err != nil {
		return err
	}
	fmt.Println("open", s.ID())
	return store.Close()
}

// Ten processes that start at once make one database.
func TestProcessesCreateTogether(t *testing.T) {
	t.Parallel()
	for round := range 3 {
		path := filepath.Join(t.TempDir(), "tenure.db")
		var openers []*process
		for range 10 {
			openers = append(openers, start(t, "opener", path))
		}
		for _, p := range openers {
			p.expect("ready")
		}
		for _, p := range openers {
			p.say("go")
		}
		for _, p := range openers {
			p.expect("open")
			if err := p.ended(); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}
		if n := query(t, path, "SELECT count(*) FROM tenure_sessions"); n != 10 {
			t.Errorf("round %d: %d sessions; want 10", round, n)
		}
		if n := query(t, path, "SELECT count(*) FROM tenure_meta, tenure_token, tenure_clock"); n != 1 {
			t.Errorf("round %d: %d rows of version, token and clock; want 1", round, n)
		}
	}
}

// waiter wins an election again and again, says when, and gives it up when told to.
func waiter(ctx context.Context, path string, args []string) error {
	if args[0] == "blind" {
		sqlite.Blind()
	}
	store, err := sqlite.New(ctx, path, sqlite.Options{})
	if err != nil {
		return err
	}
	s, err := store.Open(ctx, "waiter", time.Minute)
	if err != nil {
		return err
	}
	input := bufio.NewReader(os.Stdin)
	for {
		_, err := s.Acquire(ctx, driver.Bid{Election: "e", Queue: args[1] == "queue"})
		if errors.Is(err, driver.ErrHeld) {
			fmt.Println("waiting")
			if err := s.Await(ctx, "e"); err != nil {
				return err
			}
			fmt.Println("woken", time.Now().UnixNano())
			_, err = s.Acquire(ctx, driver.Bid{Election: "e", Queue: args[1] == "queue"})
		}
		if err != nil {
			return err
		}
		fmt.Println("won")
		if _, err := heard(input); err != nil {
			return err
		}
		if err := s.Release(ctx, "e", 0); err != nil {
			return err
		}
		fmt.Println("released")
		if _, err := heard(input); err != nil {
			return err
		}
	}
}

// A waiting member of another process learns of a vacancy within 50 ms, with the kernel's help and without. The median is tested, for the machine may be busy.
func TestVacancyIsHeardSoon(t *testing.T) {
	for _, how := range []string{"watching", "blind"} {
		for _, queue := range []string{"queue", "no queue"} {
			t.Run(how+", "+queue, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "tenure.db")
				s := session(t, openFor(t, path), "holder", time.Minute)
				p := start(t, "waiter", path, how, queue)
				p.expect("won")
				p.say("release")
				p.expect("released")
				var delays []time.Duration
				for range 15 {
					r := acquire(t, s, "e")
					p.say("go")
					p.expect("waiting")
					time.Sleep(100 * time.Millisecond) // the waiter is to be asleep, as it is in life
					begin := time.Now()
					if err := s.Release(within(t, patience), "e", r.Token); err != nil {
						t.Fatal(err)
					}
					woken, err := strconv.ParseInt(p.expect("woken"), 10, 64)
					if err != nil {
						t.Fatal(err)
					}
					delays = append(delays, time.Unix(0, woken).Sub(begin))
					p.expect("won")
					p.say("release")
					p.expect("released")
				}
				slices.Sort(delays)
				t.Logf("from the call of Release to the return of Await in the other process: median %v, longest %v", delays[len(delays)/2], delays[len(delays)-1])
				if delays[len(delays)/2] > 50*time.Millisecond {
					t.Errorf("the median is %v; want at most 50 ms", delays[len(delays)/2])
				}
			})
		}
	}
}

// idler waits for an election, and says how much of a core that costs while nothing happens.
func idler(ctx context.Context, path string, args []string) error {
	if args[0] == "blind" {
		sqlite.Blind()
	}
	store, err := sqlite.New(ctx, path, sqlite.Options{})
	if err != nil {
		return err
	}
	s, err := store.Open(ctx, "idler", time.Minute)
	if err != nil {
		return err
	}
	if _, err := s.Acquire(ctx, driver.Bid{Election: "e", Queue: true}); !errors.Is(err, driver.ErrHeld) {
		return fmt.Errorf("Acquire: %w; want ErrHeld", err)
	}
	go func() { _ = s.Await(ctx, "e") }() // until the test ends
	time.Sleep(time.Second)               // until all is set up
	before, err := cpuTime()
	if err != nil {
		return err
	}
	const span = 4 * time.Second
	time.Sleep(span) // what it costs to wait is measured
	after, err := cpuTime()
	if err != nil {
		return err
	}
	fmt.Println("used", float64(after-before)/float64(span))
	return nil
}

func cpuTime() (time.Duration, error) {
	var usage syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), err
}

// Waiting does not burn a core.
func TestWaitingIsCheap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenure.db")
	s := session(t, openFor(t, path), "holder", time.Minute)
	acquire(t, s, "e")
	for how, most := range map[string]float64{"watching": 0.05, "blind": 0.20} {
		share, err := strconv.ParseFloat(start(t, "idler", path, how).expect("used"), 64)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %.2f %% of a core", how, share*100)
		if share > most {
			t.Errorf("waiting (%s) takes %.1f %% of a core; want at most %.0f %%", how, share*100, most*100)
		}
	}
}

// cycler wins and gives up an election as fast as it can, and says with which token.
func cycler(ctx context.Context, path string, args []string) error {
	store, err := sqlite.New(ctx, path, sqlite.Options{})
	if err != nil {
		return err
	}
	// The journal has the terms in the order in which they were won: appending is atomic.
	journal, err := os.OpenFile(path+".journal", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		// A session is lost when the machine was too busy to renew it.
		if err := cycle(ctx, store, journal); !errors.Is(err, driver.ErrSessionLost) {
			return err
		}
	}
}

func cycle(ctx context.Context, store driver.Store, journal io.Writer) error {
	s, err := store.Open(ctx, "cycler", time.Second)
	if err != nil {
		return err
	}
	go func() {
		for {
			if _, err := s.KeepAlive(ctx); errors.Is(err, driver.ErrSessionLost) {
				return
			}
			time.Sleep(time.Millisecond) // renewals nearly all the time, so that the kill comes in the middle of one
		}
	}()
	for {
		r, err := campaign(ctx, s, "e")
		if err != nil {
			return err
		}
		// If the machine stands still for the rest of the lease just here, the next token is written first. Half a second is long for that.
		fmt.Fprintf(journal, "%d\n", r.Token)
		fmt.Println("token", r.Token)
		if err := s.Release(ctx, "e", r.Token); err != nil {
			return err
		}
	}
}

// Processes are killed with -9 while they write: tokens only grow, the file stays sound, and the others go on.
func TestKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure.db")
	const processes, kills = 3, 15
	var cyclers []*process
	for range processes {
		cyclers = append(cyclers, start(t, "cycler", path))
	}
	for _, p := range cyclers {
		p.expect("ready")
	}
	var last uint64
	for kill := range kills {
		victim := cyclers[kill%processes]
		// Everybody gets on while the victims die, at odd moments.
		for range 3 {
			victim.expectToken()
		}
		time.Sleep(time.Duration(kill*137) * time.Microsecond) // another moment of its cycle each time
		victim.kill()
		if victim.ended() == nil {
			t.Log("the victim had ended by itself")
		}
		cyclers[kill%processes] = start(t, "cycler", path)
	}
	for _, p := range cyclers {
		p.kill()
		_ = p.ended()
	}
	journal, err := os.ReadFile(path + ".journal")
	if err != nil {
		t.Fatal(err)
	}
	terms := 0
	for line := range strings.Lines(string(journal)) {
		token, err := strconv.ParseUint(strings.TrimSpace(line), 10, 64)
		if err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if token <= last {
			t.Fatalf("token %d after %d", token, last)
		}
		last = token
		terms++
	}
	t.Logf("%d terms, %d processes killed", terms, kills+processes)
	integrity(t, path)
	s := session(t, openFor(t, path), "survivor", time.Minute)
	// Who is not first in line sees at its renewals that those before it are dead.
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
				_, _ = s.KeepAlive(context.Background())
			}
		}
	}()
	r, err := campaign(within(t, patience), s, "e")
	if err != nil {
		t.Fatal(err)
	}
	if r.Token <= last {
		t.Errorf("token %d after %d", r.Token, last)
	}
}

func (p *process) expectToken() {
	p.t.Helper()
	for {
		line := p.line()
		if strings.HasPrefix(line, "token") {
			return
		}
		if strings.HasPrefix(line, "error:") {
			p.t.Fatal(line)
		}
	}
}

func integrity(t *testing.T, path string) {
	t.Helper()
	db := database(t, path)
	defer db.Close()
	statement, _, err := db.Prepare("PRAGMA integrity_check")
	if err != nil {
		t.Fatal(err)
	}
	defer statement.Close()
	if !statement.Step() || statement.ColumnText(0) != "ok" {
		t.Fatalf("the file is damaged: %s, %v", statement.ColumnText(0), statement.Err())
	}
}

// writer stays in the middle of a write until it is told to commit.
func writer(_ context.Context, path string, _ []string) error {
	db, err := sqlite3.OpenFlags(path, sqlite3.OPEN_READWRITE)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.Exec("BEGIN IMMEDIATE; UPDATE tenure_token SET last = last + 1"); err != nil {
		return err
	}
	fmt.Println("writing")
	if _, err := heard(bufio.NewReader(os.Stdin)); err != nil {
		return err
	}
	if err := db.Exec("COMMIT"); err != nil {
		return err
	}
	fmt.Println("committed")
	return nil
}

// locker has the file for itself alone until it is told to end.
func locker(_ context.Context, path string, _ []string) error {
	db, err := sqlite3.OpenFlags(path, sqlite3.OPEN_READWRITE|sqlite3.OPEN_CREATE)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.Exec("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; CREATE TABLE mine (x); COMMIT"); err != nil {
		return err
	}
	fmt.Println("locked")
	_, err = heard(bufio.NewReader(os.Stdin))
	return err
}

// Whoever opens a file that another process has locked as a whole is told which.
func TestLockedAsAWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenure.db")
	p := start(t, "locker", path)
	p.expect("locked")
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := sqlite.New(ctx, path, sqlite.Options{})
	t.Log(err)
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrInvalid) {
		t.Fatalf("New: %v; want an error that wraps the context's", err)
	}
	for _, part := range []string{path, strconv.Itoa(p.cmd.Process.Pid), "whole file", "end it"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("New: %q; want it to name %q", err, part)
		}
	}
	p.say("end")
	openFor(t, path)
}

// A process that is stopped in the middle of a write keeps others from renewing. They are told who it is, lose nothing but time, and go on when it goes
// on or dies.
func TestStoppedInTheMiddle(t *testing.T) {
	for _, end := range []string{"resumed", "killed"} {
		t.Run(end, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tenure.db")
			store := openFor(t, path)
			s := session(t, store, "m", time.Minute)
			r := acquire(t, s, "e")
			p := start(t, "writer", path)
			p.expect("writing")
			p.signal(syscall.SIGSTOP)
			pid := strconv.Itoa(p.cmd.Process.Pid)
			// That the signal was sent does not mean that it has worked.
			for deadline := time.Now().Add(patience); !strings.Contains(state(t, pid), "T"); {
				if time.Now().After(deadline) {
					t.Fatal("the process does not stop")
				}
				time.Sleep(time.Millisecond) // between two looks at its state
			}

			ctx, cancel := context.WithTimeout(context.Background(), 700*time.Millisecond)
			defer cancel()
			begin := time.Now()
			_, err := s.KeepAlive(ctx)
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("KeepAlive returned after %v; its context ended after 700 ms", took)
			}
			t.Log(err)
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrSessionLost) || errors.Is(err, driver.ErrInvalid) {
				t.Fatalf("KeepAlive: %v; want an unknown outcome that wraps the context's error", err)
			}
			for _, part := range []string{path, pid, "stopped", "kill -CONT"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("KeepAlive: %q; want it to name %q", err, part)
				}
			}
			if got, err := store.Get(within(t, patience), "e"); err != nil || got.Token != r.Token {
				t.Errorf("Get while nobody can write: %+v, %v; want token %d", got, err, r.Token)
			}

			if end == "killed" {
				p.kill()
			} else {
				p.signal(syscall.SIGCONT)
				p.say("commit")
				p.expect("committed")
			}
			if _, err := s.KeepAlive(within(t, patience)); err != nil {
				t.Fatalf("KeepAlive after the writer was %s: %v", end, err)
			}
			if again := acquire(t, s, "e"); again.Token != r.Token {
				t.Errorf("the term's token is %d; want %d", again.Token, r.Token)
			}
		})
	}
}

// state returns what the kernel says of a process after its name: "T 1 …" when it is stopped.
func state(t *testing.T, pid string) string {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest[:1]
}
