// Command gotest runs go test, prints what go test prints, and fails also when a test was skipped.
//
//	go run ./dev/gotest [-p 2 ...] work
//
// Tests that lack a server are skipped, so that go test is of use on any machine. Where everything is there a skip is a test that
// somebody believes to run and that does not.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
	}
	os.Exit(code)
}

func run(args []string) (int, error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	report := newReport(os.Stdout)
	errRead := report.read(events)
	var exit *exec.ExitError
	switch err := cmd.Wait(); {
	case errRead != nil:
		return 1, fmt.Errorf("output of go test -json: %w", errRead)
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode(), nil
	case err != nil:
		return 1, err
	}
	return report.end(), nil
}

// An event is a line of go test -json; go doc test2json explains it.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// A report turns events into the plain output of go test: what a test printed is shown only when it failed.
type report struct {
	out     io.Writer
	printed map[[2]string][]string // by package and test
	skipped []string               // what skipped tests printed, reasons included
	passed  int
}

func newReport(out io.Writer) *report {
	return &report{out: out, printed: map[[2]string][]string{}}
}

func (r *report) read(events io.Reader) error {
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				_, _ = r.out.Write(line) // go test prints some of its own errors as they are
			} else {
				r.handle(e)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) handle(e event) {
	key := [2]string{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		r.print(e.Output)
	case "output":
		if e.Test == "" {
			// -json implies -v, which says PASS before each line of a package that passed.
			if e.Output != "PASS\n" {
				r.print(e.Output)
			}
			return
		}
		// -v also tells when each test starts, waits and goes on.
		if !strings.HasPrefix(e.Output, "=== ") {
			r.printed[key] = append(r.printed[key], e.Output)
		}
	case "fail":
		for _, line := range r.printed[key] {
			r.print(line)
		}
		delete(r.printed, key)
	case "skip":
		if e.Test != "" { // otherwise a package without tests
			r.skipped = append(r.skipped, e.Package+"\n")
			r.skipped = append(r.skipped, r.printed[key]...)
		}
		delete(r.printed, key)
	case "pass":
		if e.Test != "" {
			r.passed++
		}
		delete(r.printed, key)
	}
}

func (r *report) print(text string) { _, _ = io.WriteString(r.out, text) } // a closed stdout has nobody to tell

// end returns the exit code for a run in which go test saw no failure.
func (r *report) end() int {
	if len(r.skipped) > 0 {
		r.print("FAIL\tskipped, where nothing may be:\n")
		for _, line := range r.skipped {
			r.print(line)
		}
		return 1
	}
	if r.passed == 0 {
		r.print("FAIL\tno test ran\n")
		return 1
	}
	return 0
}
