//go:build !unix

package supervise

import (
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"
)

// A Process is a command under its guardian.
type Process struct{}

// A StartError is why a command could not be started.
type StartError struct {
	Path string
	Code int
	Err  error
}

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

func (e *StartError) Error() string { return fmt.Sprintf("start %s: %v", e.Path, e.Err) }

// Start fails: this system has no process groups.
func Start(Command, Deadlines, *slog.Logger) (*Process, error) { return nil, errors.ErrUnsupported }

// Guard fails.
func Guard([]string) int { return 2 }

// Pid does nothing here.
func (p *Process) Pid() int { return 0 }

// Done does nothing here.
func (p *Process) Done() <-chan struct{} { return nil }

// Err does nothing here.
func (p *Process) Err() error { return nil }

// Exit does nothing here.
func (p *Process) Exit() Exit { return Exit{} }

// Extend does nothing here.
func (p *Process) Extend(Deadlines) {}

// ExtendFrom does nothing here.
func (p *Process) ExtendFrom(Deadlines, time.Time) {}

// Signal does nothing here.
func (p *Process) Signal(syscall.Signal) {}

// Stop does nothing here.
func (p *Process) Stop(time.Time) {}

// Kill does nothing here.
func (p *Process) Kill() {}
