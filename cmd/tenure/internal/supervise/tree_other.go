//go:build unix && !linux

package supervise

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

func adopt() error { return nil }

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// killRest kills what is left of the process group and reports whether there was anything.
func killRest(group int) bool { return unix.Kill(-group, unix.SIGKILL) == nil }

func groupGone(group int) bool { return unix.Kill(-group, 0) == unix.ESRCH }

// blockTTOU ignores SIGTTOU: this system's thread masks are not in reach.
func blockTTOU() { signal.Ignore(unix.SIGTTOU) }

func executable() (string, error) { return os.Executable() }
