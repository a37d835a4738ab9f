package cli

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets the test binary be the command, for scripts and for the processes that it starts by itself.
func TestMain(m *testing.M) {
	commands := map[string]func(){"tenure": func() { os.Exit(Main(os.Args)) }}
	if worker != nil {
		commands["worker"] = worker
	}
	testscript.Main(m, commands)
}

// worker is set where processes can be tested.
var worker func()

// scriptCommands are those that scripts have beside testscript's own.
var scriptCommands = map[string]func(ts *testscript.TestScript, neg bool, args []string){"exits": exits}

// TestScript runs testdata/script. Each script is about one command, its exit codes and what it prints.
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("XDG_STATE_HOME", env.WorkDir+"/state")
			return nil
		},
		Cmds: scriptCommands,
	})
}

// exits CODE COMMAND… runs a command, which has to exit with the code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND ARGS…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("%v: exit code %d, want %d", args[1:], got, want)
	}
}
