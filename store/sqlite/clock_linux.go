package sqlite

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const clockName = "the machine's, since it was started: it counts suspended time, and setting the wall clock has no effect"

// sinceBoot is the time since the machine was started, in microseconds.
func sinceBoot() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		// It exists since Linux 2.6.39, which is older than what Go supports.
		panic(fmt.Sprintf("sqlite: clock_gettime: %v", err))
	}
	return t.Nano()/1000 - namespaceOffset()
}

// namespaceOffset is what a time namespace adds to the machine's clock, in microseconds. It cannot change while a process runs.
var namespaceOffset = sync.OnceValue(func() int64 {
	text, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return 0 // a kernel without time namespaces
	}
	for line := range strings.Lines(string(text)) {
		var name string
		var seconds, nanoseconds int64
		if n, _ := fmt.Sscan(line, &name, &seconds, &nanoseconds); n == 3 && name == "boottime" {
			return (time.Duration(seconds)*time.Second + time.Duration(nanoseconds)).Microseconds()
		}
	}
	return 0
})

// bootID differs after each start of the machine.
func bootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
}
