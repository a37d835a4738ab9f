package bench_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/postgres"
	"github.com/gotenure/tenure/store/sqlite"
)

// A child is a process of its own, for its memory is measured. It is told by these what to do.
const (
	childKind   = "TENURE_BENCH_STORE" // postgres or sqlite
	childStore  = "TENURE_BENCH_URL"
	childNumber = "TENURE_BENCH_ELECTIONS"
)

const renewInterval = time.Second

// openStore opens a store of a kind.
func openStore(ctx context.Context, kind, url string) (driver.Store, error) {
	if kind == "sqlite" {
		return sqlite.New(ctx, url, sqlite.Options{})
	}
	return postgres.Open(ctx, url)
}

// child leads, or waits to lead, so many elections as one member. Each time that it is sent a line it answers with its resident memory in bytes,
// garbage aside. It ends with its input.
func child() error {
	ctx := context.Background()
	n, err := strconv.Atoi(os.Getenv(childNumber))
	if err != nil {
		return err
	}
	store, err := openStore(ctx, os.Getenv(childKind), os.Getenv(childStore))
	if err != nil {
		return err
	}
	member, err := tenure.Join(ctx, store, tenure.Config{ID: "child", TTL: time.Minute, RenewInterval: renewInterval})
	if err != nil {
		return err
	}
	for i := range n {
		go func() {
			err := member.Lead(ctx, election(i), func(ctx context.Context, _ *tenure.Term) error {
				<-ctx.Done()
				return nil
			})
			fmt.Fprintln(os.Stderr, "a lead has ended:", err)
			os.Exit(1)
		}()
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		debug.FreeOSMemory()
		rss, err := resident()
		if err != nil {
			return err
		}
		fmt.Println(rss)
	}
	return nil
}

func election(i int) string { return fmt.Sprintf("election-%05d", i) }

// resident returns the resident memory of this process in bytes.
func resident() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/self/status has no VmRSS")
}

// A process is a child as its parent sees it.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(b *testing.B, kind, url string, elections int) *process {
	self, err := os.Executable()
	try(b, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childKind+"="+kind, childStore+"="+url, fmt.Sprint(childNumber, "=", elections))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	try(b, err)
	out, err := cmd.StdoutPipe()
	try(b, err)
	try(b, cmd.Start())
	b.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			b.Error("child: ", err)
		}
	})
	return &process{cmd, in, bufio.NewReader(out)}
}

func (p *process) resident(b *testing.B) int64 {
	_, err := fmt.Fprintln(p.in)
	try(b, err)
	line, err := p.out.ReadString('\n')
	try(b, err)
	n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	try(b, err)
	return n
}

// cpu returns the processor time that the child has used.
func (p *process) cpu(b *testing.B) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	try(b, err)
	_, rest, ok := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 13 {
		b.Fatalf("/proc/PID/stat is %q", stat)
	}
	user, err := strconv.Atoi(f[11])
	try(b, err)
	system, err := strconv.Atoi(f[12])
	try(b, err)
	return time.Duration(user+system) * (time.Second / 100) // USER_HZ
}

// holdAll leads so many elections with a member that renews so rarely that it does not do so while the benchmark runs.
func holdAll(ctx context.Context, b *testing.B, kind, url string, elections int) {
	store, err := openStore(ctx, kind, url)
	try(b, err)
	b.Cleanup(func() { _ = store.Close() })
	member, err := tenure.Join(ctx, store, tenure.Config{ID: "holder", TTL: 12 * time.Hour})
	try(b, err)
	var group sync.WaitGroup
	next := make(chan int)
	for range 32 {
		group.Go(func() {
			for i := range next {
				if _, err := member.Campaign(ctx, election(i)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range elections {
		next <- i
	}
	close(next)
	group.Wait()
}
