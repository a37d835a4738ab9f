//go:build unix

package supervise

import "golang.org/x/sys/unix"

// A terminal lets the command use the terminal from its own process group.
//
// The command starts in the background of the terminal: Ctrl-C reaches tenure, which passes it on. When the command first reads, or
// changes the modes, the kernel stops it with SIGTTIN or SIGTTOU; if tenure is in the foreground the command is put there instead and
// continued. From then on Ctrl-C reaches the command alone, as it would without tenure.
type terminal struct {
	fd   int
	home int // tenure's process group
}

// openTerminal returns nil when there is no controlling terminal. All methods work on nil.
func openTerminal() *terminal {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	home, err := unix.Getpgid(unix.Getppid())
	if err != nil {
		_ = unix.Close(fd)
		return nil
	}
	return &terminal{fd: fd, home: home}
}

// stopped is called when a signal has stopped the command's group. It reports whether the group was continued.
func (t *terminal) stopped(group int, sig unix.Signal) bool {
	if t == nil {
		return false
	}
	foreground, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return false
	}
	switch sig {
	case unix.SIGTTIN, unix.SIGTTOU:
		if foreground == t.home && unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group) != nil {
			return false
		}
		// When it is another's turn at the terminal the command waits, like any job in the background.
		return (foreground == t.home || foreground == group) && unix.Kill(-group, unix.SIGCONT) == nil
	case unix.SIGTSTP:
		t.giveBack(group) // Ctrl-Z: what is typed next reaches tenure
	}
	return false
}

// giveBack makes tenure's the foreground group again if the command's is.
func (t *terminal) giveBack(group int) {
	if t == nil {
		return
	}
	if foreground, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP); err == nil && foreground == group {
		_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, t.home)
	}
}
