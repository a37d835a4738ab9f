package supervise

import (
	"time"

	"golang.org/x/sys/unix"
)

// clock is CLOCK_BOOTTIME: all processes share it, it cannot be set, and it counts the time asleep.
func clock() time.Duration { return readClock(unix.CLOCK_BOOTTIME) }
