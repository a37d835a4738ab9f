package tenure

import "time"

// clockTolerance is how far the wall clock and the monotonic clock may drift apart between two looks before the deadline is decided by
// a clock that is dearer to read. Slewing moves both alike; what is left is the time between their two readings.
const clockTolerance = time.Millisecond

// A deadline is a moment on every clock that this machine has.
//
// Go's monotonic clock stands still while a Linux machine sleeps (golang.org/issue/24595), and the wall clock can be set. While
// the two agree nothing of the kind has happened, and reading them is one time.Now. When they disagree the boot clock decides, which counts sleep and
// cannot be set; where there is none the earlier of the two does.
type deadline struct {
	at   time.Time     // wall and monotonic
	boot time.Duration // the boot clock's reading at that moment; 0: there is no such clock
}

// A moment is the present on every clock.
type moment struct {
	now  time.Time
	boot time.Duration
}

func moments() moment { return moment{now: time.Now(), boot: bootTime()} }

func (m moment) add(d time.Duration) *deadline {
	dl := &deadline{at: m.now.Add(d)}
	if m.boot != 0 {
		dl.boot = m.boot + d
	}
	return dl
}

func (d *deadline) passed(now time.Time) bool {
	return expired(d, d.at.Sub(now), time.Duration(d.at.UnixNano()-now.UnixNano()), bootTime)
}

// expired decides from what is left on the monotonic and on the wall clock.
func expired(d *deadline, mono, wall time.Duration, boot func() time.Duration) bool {
	if mono <= 0 {
		return true
	}
	if diff := mono - wall; -clockTolerance < diff && diff < clockTolerance {
		return false
	}
	if d.boot != 0 {
		return boot() >= d.boot
	}
	return wall <= 0
}
