//go:build unix

package cli

import (
	"os"
	"syscall"
)

// forwarded are the signals that tenure run passes on to its command. Not among them: those that cannot be caught, those that say that a process
// itself is at fault, SIGPIPE, SIGCHLD, SIGURG (which Go uses), and those that stop a process at a terminal.
var forwarded = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGIO,
}

// ends reports whether a signal is meant to end its receiver.
func ends(s syscall.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGQUIT || s == syscall.SIGHUP
}
