//go:build unix

package supervise

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

func readClock(id int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic("supervise: this system has no monotonic clock: " + err.Error())
	}
	return time.Duration(ts.Nano())
}

// A translator turns times of this process into readings of clock.
//
// Go's monotonic clock stands still while a Linux machine sleeps. The two clocks' difference grows by each sleep, and a time that was
// reckoned before a sleep has to be translated by the difference of then, or it would come out too late.
type translator struct {
	clock      func() time.Duration
	mu         sync.Mutex
	base       time.Time
	difference time.Duration
	before     time.Duration // the difference before the last sleep
	since      time.Time     // when the last sleep was noticed
}

func newTranslator() *translator {
	now := time.Now()
	d := clock()
	return &translator{clock: clock, base: now, difference: d, before: d, since: now}
}

// look notices a sleep. It is called more often than deadlines are reckoned.
func (t *translator) look() {
	reading := t.clock()
	now := time.Now() // after the reading: a pause between the two makes the difference smaller, which is the safe side
	if d := reading - now.Sub(t.base); d > t.difference+10*time.Millisecond {
		t.before, t.difference, t.since = t.difference, d, now
	}
}

// translate returns the reading of clock at a time that was reckoned from the moment made.
func (t *translator) translate(at, made time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.look()
	d := t.difference
	if made.Before(t.since) {
		d = t.before
	}
	return at.Sub(t.base) + d
}
