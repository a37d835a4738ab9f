//go:build !unix

package cli

import (
	"os"
	"syscall"
)

var forwarded = []os.Signal{os.Interrupt, syscall.SIGTERM}

func ends(syscall.Signal) bool { return true }
