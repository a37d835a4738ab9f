package tenure

import (
	"testing"
	"time"
)

// S3: a deadline that passed while the machine slept has passed at the first look, and setting the wall clock alone ends nothing.
func TestDeadlineCountsSleep(t *testing.T) {
	const left = 10 * time.Second
	for _, c := range []struct {
		name       string
		mono, wall time.Duration // left on each clock
		boot       time.Duration // left on the boot clock
		noBoot     bool
		want       bool
	}{
		{name: "nothing happened", mono: left, wall: left, boot: left},
		{name: "passed", mono: 0, wall: 0, boot: 0, want: true},
		{name: "slept past it", mono: left, wall: -time.Hour, boot: -time.Hour, want: true},
		{name: "slept past it, and the wall clock was set back as far", mono: left, wall: left - 2*time.Millisecond, boot: -time.Hour, want: true},
		{name: "slept a little", mono: left, wall: left - 3*time.Second, boot: left - 3*time.Second},
		{name: "wall clock set forward", mono: left, wall: -time.Hour, boot: left},
		{name: "wall clock set back", mono: left, wall: time.Hour, boot: left},
		{name: "passed, wall clock set back", mono: -1, wall: time.Hour, boot: -1, want: true},
		{name: "no boot clock, slept past it", mono: left, wall: -1, noBoot: true, want: true},
		{name: "no boot clock, wall clock set back", mono: left, wall: time.Hour, noBoot: true},
	} {
		now := 10 * time.Hour
		d := &deadline{boot: now + c.boot}
		if c.noBoot {
			d.boot = 0
		}
		if got := expired(d, c.mono, c.wall, func() time.Duration { return now }); got != c.want {
			t.Errorf("%s: passed is %v, want %v", c.name, got, c.want)
		}
	}
}

func TestBootTimeMoves(t *testing.T) {
	m := moments()
	d := m.add(time.Hour)
	if d.passed(time.Now()) {
		t.Error("an hour has passed")
	}
	if m.boot == 0 {
		t.Log("this system has no boot clock")
	} else if bootTime() < m.boot || bootTime() > m.boot+time.Minute {
		t.Errorf("the boot clock went from %v to %v", m.boot, bootTime())
	}
}

func BenchmarkCheck(b *testing.B) {
	s := &session{}
	s.deadline.Store(moments().add(time.Hour))
	t := &Term{session: s}
	b.ReportAllocs()
	for b.Loop() {
		if t.Check() != nil {
			b.Fatal("ended")
		}
	}
}

func BenchmarkTimeNow(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_ = time.Now()
	}
}

func TestCheckDoesNotAllocate(t *testing.T) {
	s := &session{}
	s.deadline.Store(moments().add(time.Hour))
	term := &Term{session: s}
	if n := testing.AllocsPerRun(100, func() { _ = term.Check() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
