package cli

import "syscall"

// demoAttributes make a member die with the demo even while it is stopped.
func demoAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
