//go:build unix

package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// A screen shows lines, and in a terminal that can erase one, below them a line that is always up to date.
type screen struct {
	out    io.Writer
	fd     int // of the terminal; -1: it is none
	begun  time.Time
	status func() string
	ticker *time.Ticker
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out, fd: -1, begun: time.Now()}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		s.fd = int(f.Fd())
	}
	return s
}

// live begins the line below, which is what status returns.
func (s *screen) live(status func() string) {
	if s.fd >= 0 {
		s.status, s.ticker = status, time.NewTicker(100*time.Millisecond)
	}
}

// ticks says when to draw.
func (s *screen) ticks() <-chan time.Time {
	if s.ticker == nil {
		return nil
	}
	return s.ticker.C
}

const eraseLine = "\r\x1b[K"

func (s *screen) say(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if line != "" {
		line = fmt.Sprintf("%6.2f  %s", time.Since(s.begun).Seconds(), line)
	}
	if s.status != nil {
		line = eraseLine + line
	}
	fmt.Fprintln(s.out, line)
	s.draw()
}

func (s *screen) draw() {
	if s.status == nil {
		return
	}
	line := []rune(fmt.Sprintf("%6.2f%s", time.Since(s.begun).Seconds(), s.status()))
	if width, _, err := term.GetSize(s.fd); err == nil && width > 1 && len(line) > width-1 {
		line = line[:width-1]
	}
	fmt.Fprint(s.out, eraseLine+"\x1b[7m"+string(line)+"\x1b[0m")
}

// stop removes the line below.
func (s *screen) stop() {
	if s.status != nil {
		s.ticker.Stop()
		s.status = nil
		fmt.Fprint(s.out, eraseLine)
	}
}
