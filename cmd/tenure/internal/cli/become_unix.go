//go:build unix

package cli

import (
	"os"
	"syscall"
)

// become runs a command in this process's place.
func become(path string, args []string) error {
	return fail(codeNotRunnable, "command %q: cannot be executed: %w", args[0], syscall.Exec(path, args, os.Environ()))
}
