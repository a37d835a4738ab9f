//go:build unix

package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Process is a command under its guardian. Its methods may be called concurrently.
type Process struct {
	log      *slog.Logger
	guardian int
	pid      int
	clock    *translator
	done     chan struct{}
	exit     Exit  // valid after done
	err      error // valid after done; see Err

	mu     sync.Mutex
	orders *os.File
	last   *time.Timer // kills the guardian when it has not done its work in time
	ended  bool        // the guardian has been reaped: its number may be another's
}

// A StartError is why a command could not be started. Code is what a shell would exit with: 127 when there is no such command, 126
// when it cannot be executed.
type StartError struct {
	Path string
	Code int
	Err  error
}

func (e *StartError) Error() string { return fmt.Sprintf("start %s: %v", e.Path, e.Err) }

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// Start starts the command, which dies by the deadlines unless Extend moves them. Only one may run at a time in a process, which must
// start no other children, for it becomes the reaper of all that the command leaves.
func Start(cmd Command, until Deadlines, log *slog.Logger) (*Process, error) {
	if err := adopt(); err != nil {
		return nil, fmt.Errorf("become the reaper of the command's processes: %w", err)
	}
	orderR, orderW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	reportR, reportW, err := os.Pipe()
	if err != nil {
		orderR.Close()
		orderW.Close()
		return nil, err
	}
	self, err := executable()
	p := &Process{log: log, clock: newTranslator(), done: make(chan struct{}), orders: orderW}
	if err == nil {
		p.guardian, err = syscall.ForkExec(self, append([]string{"tenure", GuardianArg, cmd.Path}, cmd.Args...), &syscall.ProcAttr{
			Env:   cmd.Env,
			Files: []uintptr{cmd.Files[0].Fd(), cmd.Files[1].Fd(), cmd.Files[2].Fd(), orderR.Fd(), reportW.Fd()},
			// A group of its own, so that what is typed or sent to tenure's group does not reach the guardian.
			Sys: &syscall.SysProcAttr{Setpgid: true},
		})
	}
	// The guardian has the other ends now: only its death may end the reports.
	orderR.Close()
	reportW.Close()
	if err != nil {
		orderW.Close()
		reportR.Close()
		return nil, fmt.Errorf("start the guardian: %w", err)
	}
	p.Extend(until)
	started := make(chan report, 1)
	go p.follow(reportR, started)
	first, ok := <-started
	if !ok {
		<-p.done
		return nil, errors.New("the guardian died before it could start the command: is the machine out of memory?")
	}
	if first.Err != "" {
		<-p.done
		start := &StartError{Path: cmd.Path, Code: 126, Err: errors.New(first.Err)}
		if syscall.Errno(first.Errno) == syscall.ENOENT {
			if _, err := os.Stat(cmd.Path); err != nil {
				start.Code = 127
			} else {
				start.Err = errors.New("the interpreter in its first line, or the loader that it needs, does not exist")
			}
		}
		return nil, start
	}
	return p, nil
}

// Pid returns the command's process ID, which is also that of its process group.
func (p *Process) Pid() int { return p.pid }

// Done is closed when the command and all that it started are dead.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit returns how the command ended. It is valid after Done.
func (p *Process) Exit() Exit { return p.exit }

// Err returns nil when the command ended by itself or by Stop, Kill or Signal, and else why it did not: a deadline had passed, or the guardian had
// died. It is valid after Done.
func (p *Process) Err() error { return p.err }

// Extend moves the deadlines, which were reckoned just now.
func (p *Process) Extend(until Deadlines) { p.ExtendFrom(until, time.Now()) }

// ExtendFrom moves the deadlines, which were reckoned from the time made: with the machine asleep since, they come sooner than this
// process's clock says.
func (p *Process) ExtendFrom(until Deadlines, made time.Time) {
	p.send(order{Term: p.clock.translate(until.Term, made), Kill: p.clock.translate(until.Kill, made)})
}

// Signal sends a signal to the command's process group.
func (p *Process) Signal(sig syscall.Signal) { p.send(order{Signal: int(sig)}) }

// Stop sends SIGTERM, and SIGKILL at the time kill, which is final. The caller waits for Done.
func (p *Process) Stop(kill time.Time) {
	p.send(order{Signal: int(unix.SIGTERM), Stop: true, Kill: p.clock.translate(kill, time.Now())})
	p.force(time.Until(kill) + 2*glance)
}

// Kill sends SIGKILL now.
func (p *Process) Kill() {
	p.send(order{Stop: true, Kill: p.clock.translate(time.Now(), time.Now())})
	p.force(2 * glance)
}

var (
	errExpired  = errors.New("no renewal was heard of in time: tenure was stopped, or the machine slept or was overloaded")
	errGuardian = errors.New("the guardian has died")
)

func (p *Process) wasStopped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last != nil
}

// force kills the guardian, and with it the command, unless all are dead after d.
func (p *Process) force(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last != nil {
		p.last.Stop()
	}
	p.last = time.AfterFunc(max(d, glance), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.ended {
			return
		}
		p.log.Warn("the guardian has not stopped the command in time: killing both", "guardian", p.guardian, "pid", p.pid)
		_ = unix.Kill(p.guardian, unix.SIGKILL)
	})
}

func (p *Process) send(o order) {
	line, err := json.Marshal(o)
	if err != nil {
		panic(err) // an order has nothing that cannot be encoded
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// A guardian that is stopped does not empty the pipe. It must not hold tenure up.
	_ = p.orders.SetWriteDeadline(time.Now().Add(glance))
	if _, err := p.orders.Write(append(line, '\n')); err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, os.ErrClosed) {
		p.log.Warn("the guardian does not listen", "guardian", p.guardian, "err", err)
	}
}

// follow reads what the guardian reports until it has ended, and takes its place if it ended too early.
func (p *Process) follow(reports *os.File, started chan<- report) {
	defer close(p.done)
	ended := make(chan unix.WaitStatus, 1)
	go p.waitGuardian(ended)
	decoder := json.NewDecoder(reports)
	gone, failed := false, false
	for {
		var r report
		if err := decoder.Decode(&r); err != nil {
			break
		}
		switch {
		case r.Pid != 0:
			p.pid = r.Pid
			started <- r
		case r.Err != "":
			failed = true
			started <- r
		case r.Expired == unix.SignalName(unix.SIGKILL) && p.wasStopped():
			p.log.Warn("the command had no more time to stop: it was killed", "pid", p.pid)
		case r.Expired != "":
			if !p.wasStopped() {
				p.err = errExpired
			}
			p.log.Warn("the guardian has sent a signal to the command: its deadline had passed", "signal", r.Expired, "pid", p.pid)
		case r.Stopped != 0:
			p.log.Warn("the command is stopped; this member still leads", "signal", unix.SignalName(unix.Signal(r.Stopped)), "pid", p.pid)
		case r.Leftover:
			p.log.Warn("the command left processes behind: they were killed", "pid", p.pid)
		case r.Gone:
			gone, p.exit = true, r.Exit
		}
	}
	ws := <-ended
	reports.Close()
	p.mu.Lock()
	p.orders.Close()
	if p.last != nil {
		p.last.Stop()
	}
	p.mu.Unlock()
	if !gone && !failed {
		p.log.Error("the guardian has died: killing the command", "guardian", p.guardian, "status", fmt.Sprint(exitOf(ws)), "pid", p.pid)
		p.takeOver()
		p.err = errGuardian
	}
	close(started)
}

// waitGuardian reaps the guardian, and continues it when somebody stops it.
func (p *Process) waitGuardian(ended chan<- unix.WaitStatus) {
	for {
		var ws unix.WaitStatus
		_, err := unix.Wait4(p.guardian, &ws, unix.WUNTRACED, nil)
		switch {
		case err == unix.EINTR:
		case err == nil && ws.Stopped():
			p.log.Warn("the guardian was stopped: continuing it", "guardian", p.guardian)
			_ = unix.Kill(p.guardian, unix.SIGCONT)
		default:
			p.mu.Lock()
			p.ended = true
			p.mu.Unlock()
			ended <- ws
			return
		}
	}
}

// takeOver kills and reaps the command and all that it started, in the guardian's place.
func (p *Process) takeOver() {
	p.exit = Exit{Code: 128 + int(unix.SIGKILL), Signal: int(unix.SIGKILL)}
	reaped := p.pid == 0
	for {
		if !reaped {
			_ = unix.Kill(-p.pid, unix.SIGKILL)
		}
		killRest(p.pid)
		for {
			var ws unix.WaitStatus
			pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
			if err == unix.ECHILD && (p.pid == 0 || groupGone(p.pid)) {
				return
			}
			if pid == p.pid && pid > 0 {
				reaped, p.exit = true, exitOf(ws)
			}
			if err != unix.EINTR && pid <= 0 {
				break
			}
		}
		time.Sleep(round)
	}
}
