//go:build unix

package supervise

import "time"

// Times on the wire are readings of a clock that both processes share, which counts the time asleep where the system has one: what is
// late in the pipe loses nothing of its meaning.

// An order goes to the guardian.
type order struct {
	Term   time.Duration `json:",omitempty"` // new deadlines
	Kill   time.Duration `json:",omitempty"`
	Signal int           `json:",omitempty"` // to send to the process group
	Stop   bool          `json:",omitempty"` // the end is wanted: Kill is final
}

// A report comes from the guardian.
type report struct {
	Pid      int    `json:",omitempty"` // the command has started; also its process group
	Err      string `json:",omitempty"` // the command could not be started
	Errno    int    `json:",omitempty"`
	Expired  string `json:",omitempty"` // a deadline has passed: the signal that was sent
	Stopped  int    `json:",omitempty"` // the command was stopped by this signal
	Leftover bool   `json:",omitempty"` // what the command had left behind when it ended was killed
	Gone     bool   `json:",omitempty"` // the command and all that it started are dead
	Exit     Exit
}
