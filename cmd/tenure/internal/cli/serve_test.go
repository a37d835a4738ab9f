//go:build unix

package cli

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func init() {
	scriptCommands["serving"] = serving
	scriptCommands["stopped"] = stopped
}

// servers are those that scripts have running.
var servers sync.Map

// serving starts tenure serve on a free port, with the data in the script's directory, and sets STORE to the URL that it prints.
func serving(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: serving")
	}
	program := ""
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if path := filepath.Join(dir, "tenure"); program == "" {
			if _, err := os.Stat(path); err == nil {
				program = path
			}
		}
	}
	cmd := exec.Command(program, "serve", "--data-dir", ts.MkAbs("data"), "--listen", "127.0.0.1:0")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	servers.Store(ts, cmd)
	ts.Defer(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	line := make(chan string, 1)
	go func() {
		s := bufio.NewScanner(out)
		s.Scan()
		line <- s.Text()
	}()
	select {
	case url := <-line:
		if url == "" {
			ts.Fatalf("tenure serve has ended without a URL")
		}
		ts.Setenv("STORE", url)
	case <-time.After(time.Minute):
		ts.Fatalf("tenure serve has printed nothing in a minute")
	}
}

// stopped ends the server with SIGTERM, and wants exit code 0.
func stopped(ts *testscript.TestScript, neg bool, args []string) {
	running, ok := servers.LoadAndDelete(ts)
	if neg || len(args) > 0 || !ok {
		ts.Fatalf("usage: stopped, after serving")
	}
	cmd := running.(*exec.Cmd)
	ts.Check(cmd.Process.Signal(syscall.SIGTERM))
	ts.Check(cmd.Wait())
}
