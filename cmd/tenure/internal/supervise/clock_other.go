//go:build unix && !linux

package supervise

import (
	"time"

	"golang.org/x/sys/unix"
)

func clock() time.Duration { return readClock(unix.CLOCK_MONOTONIC) }
