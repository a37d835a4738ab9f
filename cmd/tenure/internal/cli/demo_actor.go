//go:build unix

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// An actor is a member process of the demo.
type actor struct {
	name   string
	state  string // for people
	writes int
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	quit   chan struct{} // closed when nobody listens to it any more
	ended  chan struct{} // closed when its output has ended
}

type actorReport struct {
	memberReport
	from *actor
}

// hire starts a member process.
func (d *demo) hire(name string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	a := &actor{name: name, state: "starting", quit: make(chan struct{}), ended: make(chan struct{})}
	a.cmd = &exec.Cmd{
		Path: self, Args: []string{"tenure", demoMemberArg, name},
		Env:    environment(map[string]string{storeVariable: d.url}),
		Stderr: os.Stderr,
		// A group of its own: Ctrl-C is for the demo, which ends its members. It is told of by the end of their standard input if
		// it cannot.
		SysProcAttr: demoAttributes(),
	}
	if a.stdin, err = a.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := a.cmd.Start(); err != nil {
		return fmt.Errorf("start member %s: %w", name, err)
	}
	d.members = append(d.members, a)
	go func() {
		defer close(a.ended)
		for decoder := json.NewDecoder(out); ; {
			r := actorReport{from: a}
			if decoder.Decode(&r.memberReport) != nil {
				return
			}
			select {
			case d.reports <- r:
			case <-a.quit:
				return
			}
		}
	}()
	return nil
}

func (a *actor) pid() int { return a.cmd.Process.Pid }

func (a *actor) signal(sig syscall.Signal) error {
	if err := a.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("send %v to member %s: %w", sig, a.name, err)
	}
	return nil
}

func (a *actor) tell(line string) error {
	if _, err := io.WriteString(a.stdin, line+"\n"); err != nil {
		return fmt.Errorf("tell member %s: %w", a.name, err)
	}
	return nil
}

// fire ends a member process whose work is over. It is given a moment to leave in good order.
func (a *actor) fire() {
	close(a.quit)
	_ = a.stdin.Close()
	_ = a.cmd.Process.Signal(syscall.SIGCONT)
	timer := time.AfterFunc(demoTTL, func() { _ = a.cmd.Process.Kill() })
	defer timer.Stop()
	<-a.ended
	_ = a.cmd.Wait()
}

// end ends all members.
func (d *demo) end() {
	for _, a := range d.members {
		a.fire()
	}
	d.members = nil
}
