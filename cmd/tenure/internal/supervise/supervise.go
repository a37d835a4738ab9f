// Package supervise runs a command that must be dead by a deadline.
//
// The command does not run under this process but under a guardian, a small process of its own, re-executed from the same
// binary, which is told every new deadline and kills the command when none comes. So the command dies in time also when this
// process is killed, stopped or stuck. Who dies, and what follows:
//
//   - This process: the guardian sees the end of its pipe, kills the command and all that the command started, and ends.
//   - This process is stopped (SIGSTOP, a debugger, a frozen terminal): no new deadline reaches the guardian; it kills in time.
//   - The guardian: the kernel kills the command (parent-death signal, Linux), and this process, to which all that the command
//     started is reparented (child subreaper, Linux), kills the rest.
//   - The guardian is stopped: this process continues it, and kills by itself when the guardian is not done in time.
//
// On Linux "dead" means that no descendant of the command is left, whether in its process group or not, for the guardian is
// their reaper: a process that made itself a daemon is found too. On other systems it means that the process group is empty.
// What the command had started by somebody else, such as a container engine or an init system, is out of reach everywhere.
package supervise

import (
	"os"
	"time"
)

// GuardianArg is the first argument with which a guardian is started: main calls Guard when it sees it.
const GuardianArg = "__guardian"

// A Command is what to run.
type Command struct {
	Path  string   // of the executable file
	Args  []string // with the command's own name as the first
	Env   []string
	Files [3]*os.File // standard input, output and error
}

// An Exit is how a command ended.
type Exit struct {
	Code   int // 128 + the signal's number when a signal ended it, as shells count
	Signal int // 0 when it ended by itself
}

// Deadlines are when a command has to go, on this machine's clock.
type Deadlines struct {
	Term time.Time // it gets SIGTERM, unless the deadlines are moved before
	Kill time.Time // it gets SIGKILL
}
