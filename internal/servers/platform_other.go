//go:build !linux

package servers

import (
	"os"
	"os/exec"
	"syscall"
)

const supported = false

func giveAway(string) error { return ErrUnsupported }

func setUser(*exec.Cmd) error { return ErrUnsupported }

func setDeathSignal(*exec.Cmd, syscall.Signal) {}

// DieWithParent does nothing on this operating system.
func DieWithParent() error { return nil }

// SignalTree sends a signal to a process; its descendants cannot be found on this operating system.
func SignalTree(pid int, sig syscall.Signal) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Signal(sig) // it may be gone already
	}
}

func pauseTree(int) {}

func resumeTree(int) {}

func killTree(int) {}
