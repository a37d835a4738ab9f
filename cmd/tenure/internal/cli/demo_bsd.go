//go:build unix && !linux

package cli

import "syscall"

func demoAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
