//go:build !unix

package cli

import (
	"errors"
	"os"
	"os/exec"
)

// become runs a command and passes its exit code on: this system cannot replace a process.
func become(path string, args []string) error {
	cmd := exec.Command(path, args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return &exitError{exit.ExitCode(), nil}
	case err != nil:
		return fail(codeNotRunnable, "command %q: cannot be executed: %w", args[0], err)
	}
	return nil
}
