//go:build unix

package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	ordersFD  = 3
	reportsFD = 4

	// glance is the longest time without a look at the clock: a timer stands still while the machine sleeps, the deadline does not.
	glance = 250 * time.Millisecond

	// round is the pause between two rounds of killing. A round costs a look at every process of the machine.
	round = 10 * time.Millisecond
)

// Guard is the guardian's main function. It returns its exit code once the command and all that it started are dead.
func Guard(args []string) int {
	// The parent-death signal is tied to the thread that starts the command, so this one must last as long as the process.
	runtime.LockOSThread()
	if len(args) == 0 || unix.SetNonblock(ordersFD, true) != nil || unix.SetNonblock(reportsFD, true) != nil {
		fmt.Fprintf(os.Stderr, "%s is started by tenure run only\n", GuardianArg)
		return 2
	}
	unix.CloseOnExec(ordersFD)
	unix.CloseOnExec(reportsFD)
	g := &guardian{
		orders:  json.NewDecoder(os.NewFile(ordersFD, "orders")),
		reports: json.NewEncoder(os.NewFile(reportsFD, "reports")),
		tty:     openTerminal(),
	}
	return g.run(args)
}

type guardian struct {
	orders  *json.Decoder
	reports *json.Encoder
	tty     *terminal

	main     int // the command's process ID, and its group's
	reaped   bool
	left     bool // it left something behind
	exit     Exit
	deadline order
	termed   bool // the deadline for SIGTERM has passed
	stopping bool
	killing  bool
}

func (g *guardian) run(args []string) int {
	// A service manager that stops a unit sends SIGTERM to all its processes. The guardian ends when its work is done, not before. The
	// handlers, unlike ignored signals, are not passed on to the command.
	signal.Notify(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGTSTP)
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)

	// No deadline, no command.
	if err := g.orders.Decode(&g.deadline); err != nil {
		return 0
	}
	if err := adopt(); err != nil {
		g.report(report{Err: "become the reaper of the command's processes: " + err.Error()})
		return 1
	}
	pid, err := syscall.ForkExec(args[0], args[1:], &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2},
		Sys:   attributes(),
	})
	if err != nil {
		var errno syscall.Errno
		errors.As(err, &errno)
		g.report(report{Err: err.Error(), Errno: int(errno)})
		return 1
	}
	g.main = pid
	// From a background group, writing to a terminal and changing its foreground group are answered with SIGTTOU. The command, which would
	// inherit the mask, has started.
	blockTTOU()
	g.report(report{Pid: pid})

	orders := make(chan order)
	go g.receive(orders)
	timer := time.NewTimer(0)
	for {
		select {
		case o, ok := <-orders:
			if ok {
				g.obey(o)
				break
			}
			orders = nil
			if !g.killing {
				g.say("tenure has died: killing its command", "pid", g.main)
				g.killing = true
			}
		case <-children:
		case <-timer.C:
		}
		if gone := g.reap(); gone {
			g.tty.giveBack(g.main)
			g.report(report{Gone: true, Exit: g.exit})
			return 0
		}
		timer.Reset(g.watch())
	}
}

// receive reads orders until the pipe ends, which it does when tenure dies.
func (g *guardian) receive(orders chan<- order) {
	defer close(orders)
	for {
		var o order
		if err := g.orders.Decode(&o); err != nil {
			return
		}
		orders <- o
	}
}

func (g *guardian) obey(o order) {
	if o.Stop {
		g.stopping = true
		g.deadline.Kill = o.Kill
	} else if o.Kill != 0 && !g.stopping && !g.termed {
		// Once SIGTERM has been sent because a deadline passed, there is no way back: the command is on its way out.
		g.deadline = o
	}
	if o.Signal != 0 {
		g.signal(unix.Signal(o.Signal))
	}
}

// watch enforces the deadlines and returns when to look again.
func (g *guardian) watch() time.Duration {
	now := clock()
	if !g.stopping && !g.termed && now >= g.deadline.Term {
		g.termed = true
		g.say("no renewal of the lease was heard of in time: stopping the command", "pid", g.main)
		g.report(report{Expired: "SIGTERM"})
		g.signal(unix.SIGTERM)
	}
	if !g.killing && now >= g.deadline.Kill {
		g.killing = true
		if !g.reaped {
			g.report(report{Expired: "SIGKILL"})
		}
	}
	if g.killing || g.reaped {
		if !g.reaped {
			_ = unix.Kill(-g.main, unix.SIGKILL)
		}
		g.killRest()
		return round
	}
	next := g.deadline.Kill
	if !g.stopping && !g.termed {
		next = min(next, g.deadline.Term)
	}
	return min(next-now, glance)
}

// signal sends a signal to the command's process group. Its number cannot be another group's before the command is reaped.
func (g *guardian) signal(sig unix.Signal) {
	if g.reaped {
		return
	}
	_ = unix.Kill(-g.main, sig)
	switch sig {
	case unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT:
		_ = unix.Kill(-g.main, unix.SIGCONT) // a stopped process does not act on the others
	}
}

// killRest kills what the command has started and not taken with it.
func (g *guardian) killRest() {
	if killRest(g.main) && g.reaped && !g.left {
		g.left = true
		g.report(report{Leftover: true})
	}
}

// reap collects whoever has ended and reports whether nobody is left.
func (g *guardian) reap() bool {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG|unix.WUNTRACED, nil)
		switch {
		case err == unix.EINTR:
		case err == unix.ECHILD:
			return groupGone(g.main)
		case err != nil || pid == 0:
			return false
		case pid == g.main && ws.Stopped():
			if !g.tty.stopped(g.main, ws.StopSignal()) {
				g.report(report{Stopped: int(ws.StopSignal())})
			}
		case pid == g.main:
			g.reaped, g.exit = true, exitOf(ws)
			g.killRest()
		}
	}
}

func exitOf(ws unix.WaitStatus) Exit {
	if ws.Signaled() {
		return Exit{Code: 128 + int(ws.Signal()), Signal: int(ws.Signal())}
	}
	return Exit{Code: ws.ExitStatus()}
}

// report tells tenure. When tenure is stopped the pipe fills up at last, when it is dead nobody reads: neither may hold the guardian up.
func (g *guardian) report(r report) { _ = g.reports.Encode(r) }

// say is for people; it goes where tenure's own lines go.
func (g *guardian) say(message string, args ...any) { logger().Warn(message, args...) }
