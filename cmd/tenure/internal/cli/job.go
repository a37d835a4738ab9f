package cli

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/cmd/tenure/internal/supervise"
	"github.com/gotenure/tenure/driver"
)

const (
	// restMin and restMax bound the pause after which --keep stands again. It doubles while the command ends within restMax, so that one that
	// fails at once does not take leadership back and forth.
	restMin = time.Second
	restMax = time.Minute
)

// A job is a command that runs whenever its member leads.
type job struct {
	options *runOptions
	log     *slog.Logger
	drift   time.Duration
	cancel  context.CancelCauseFunc // ends the standing

	mu      sync.Mutex
	process *supervise.Process // nil: the command does not run
	ending  bool               // a signal has asked for the end: do not stand again
	signal  syscall.Signal     // that signal
	killing *supervise.Process // the one that is killed after the grace, because of SIGTERM
}

var errOver = errors.New("the command has ended")

// run stands until the command's end, a loss or a signal decides what to exit with.
func (j *job) run(ctx context.Context, member *tenure.Member) error {
	ctx, j.cancel = context.WithCancelCause(ctx)
	defer j.cancel(nil)
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	defer signal.Stop(signals)
	go j.forward(ctx, signals)
	observed := make(chan struct{})
	go func() {
		defer close(observed)
		j.observe(ctx, member)
	}()
	defer func() { j.cancel(nil); <-observed }()

	for rest := restMin; ; {
		var outcome error
		decided := false
		began := time.Now()
		lead, over := context.WithCancelCause(ctx)
		err := member.Lead(lead, j.options.election, func(_ context.Context, term *tenure.Term) error {
			again, err := j.serve(term)
			if again {
				return nil
			}
			outcome, decided = err, true
			over(errOver) // Lead would stand again if the term was lost at this moment
			return errOver
		})
		over(nil)
		switch {
		case decided && !j.again(outcome):
			return outcome
		case ctx.Err() != nil:
			return &exitError{128 + int(j.endSignal()), nil}
		case !decided && errors.Is(err, driver.ErrInvalid):
			return storeFailed(err)
		case !decided && err != nil:
			return failed(err)
		}
		if time.Since(began) > restMax {
			rest = restMin
		}
		pause := rest/2 + rand.N(rest/2)
		j.log.Info("standing again after a pause", "election", j.options.election, "pause", pause.Round(time.Millisecond))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return &exitError{128 + int(j.endSignal()), nil}
		}
		rest = min(2*rest, restMax)
	}
}

// again says whether to stand again after the command has ended by itself.
func (j *job) again(outcome error) bool {
	var exit *exitError
	ended := outcome == nil || errors.As(outcome, &exit) && exit.err == nil
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.options.keep && ended && !j.ending
}

func (j *job) endSignal() syscall.Signal {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.signal
}

// serve runs the command during one term. When it returns, the command and all that it started are dead. again means that nothing is
// decided: tenure stands again.
func (j *job) serve(term *tenure.Term) (again bool, outcome error) {
	p, err := j.start(term)
	if p == nil {
		return false, err
	}
	exit, stopped := j.follow(term, p)
	j.mu.Lock()
	j.process = nil
	if exit.Signal != 0 && exit.Signal == int(j.signal) {
		j.ending = true // it died of what was passed on to it
	}
	ending := j.ending
	j.mu.Unlock()

	log := j.log.With("election", term.Election(), "token", term.Token(), "pid", p.Pid(), "code", exit.Code)
	switch {
	case stopped == nil:
		log.Info("the command has ended")
	case ending:
		log.Info("the command has been stopped", "why", stopped)
	case j.options.exitOnLoss:
		log.Warn("the command has been stopped: exiting", "why", stopped)
		return false, fail(codeTemporary, "the command was stopped: %w", stopped)
	default:
		log.Warn("the command has been stopped: standing again", "why", stopped)
		return true, nil
	}
	if exit.Code == 0 {
		return false, nil
	}
	return false, &exitError{exit.Code, nil}
}

// start starts the command, unless a signal has come before. A nil process with a nil error cannot be.
func (j *job) start(term *tenure.Term) (*supervise.Process, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ending {
		return nil, &exitError{128 + int(j.signal), nil}
	}
	until, _ := j.deadlines(term)
	p, err := supervise.Start(supervise.Command{
		Path: j.options.path,
		Args: j.options.args,
		Env: environment(map[string]string{
			"TENURE_ELECTION": term.Election(),
			"TENURE_MEMBER":   term.Member(),
			"TENURE_TOKEN":    strconv.FormatUint(term.Token(), 10),
		}),
		Files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr},
	}, until, j.log)
	var start *supervise.StartError
	switch {
	case errors.As(err, &start):
		return nil, &exitError{start.Code, err}
	case err != nil:
		return nil, failed(err)
	}
	j.log.Info("the command has started", "election", term.Election(), "token", term.Token(), "pid", p.Pid(), "command", j.options.args[0])
	j.process = p
	return p, nil
}

// environment is this process's with the given variables, each of them once: which of two counts is up to who reads it.
func environment(set map[string]string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		_, replaced := set[name]
		return replaced
	})
	for _, name := range slices.Sorted(maps.Keys(set)) {
		env = append(env, name+"="+set[name])
	}
	return env
}

// deadlines are those of a term: the command is told to stop when the term ends, and killed when two thirds of the time for stopping have passed; the
// last third is for the kernel to end it and for this process to notice. made is the time from which they were reckoned.
func (j *job) deadlines(term *tenure.Term) (until supervise.Deadlines, made time.Time) {
	end := term.Deadline()
	lease := j.options.ttl - j.drift - j.options.stopTimeout
	return supervise.Deadlines{Term: end, Kill: end.Add(j.options.stopTimeout * 2 / 3)}, end.Add(-lease)
}

// follow waits until the command is dead, and stops it when the term ends. stopped is why it was stopped; nil: it ended by itself.
func (j *job) follow(term *tenure.Term, p *supervise.Process) (exit supervise.Exit, stopped error) {
	// The guardian hears of a renewal with a delay of one tick, which is small against the interval of renewals, a third of the TTL.
	tick := time.NewTicker(j.options.ttl / 40)
	defer tick.Stop()
	ended := term.Done()
	for {
		select {
		case <-p.Done():
			if stopped == nil {
				stopped = p.Err()
			}
			return p.Exit(), stopped
		case <-tick.C:
			if stopped == nil && term.Check() == nil {
				p.ExtendFrom(j.deadlines(term))
			}
		case <-ended:
			ended = nil
			stopped = context.Cause(term.Context())
			until, _ := j.deadlines(term)
			switch {
			case !errors.Is(stopped, tenure.ErrLost):
				kill := time.Now().Add(j.options.stopTimeout * 2 / 3)
				p.Stop(earlier(kill, until.Kill))
			case errors.Is(stopped, driver.ErrSessionLost) || time.Now().Before(until.Term):
				// The store says that it is over already: somebody else may lead at this moment.
				p.Kill()
			default:
				p.Stop(until.Kill)
			}
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// forward passes signals on to the command, or acts on them when it does not run.
func (j *job) forward(ctx context.Context, signals <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case sig := <-signals:
			if s, ok := sig.(syscall.Signal); ok {
				j.handle(s)
			}
		}
	}
}

func (j *job) handle(sig syscall.Signal) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !ends(sig) {
		if j.process != nil {
			j.process.Signal(sig)
		}
		return
	}
	// SIGHUP asks some commands to read their configuration again: it is the end only for one that dies of it.
	j.ending = j.ending || sig != syscall.SIGHUP || j.process == nil
	j.signal = sig
	if j.process == nil {
		j.log.Info("ending", "election", j.options.election, "signal", sig.String())
		j.cancel(&signalError{sig})
		return
	}
	j.log.Info("passing a signal on to the command", "election", j.options.election, "signal", sig.String(), "pid", j.process.Pid())
	j.process.Signal(sig)
	// Whatever came before it and was ignored: SIGTERM is the end, after the grace.
	if p := j.process; sig == syscall.SIGTERM && j.killing != p {
		j.killing = p
		time.AfterFunc(j.options.grace, func() {
			select {
			case <-p.Done():
			default:
				j.log.Warn("the command has not stopped in time: killing it", "pid", p.Pid(), "grace", j.options.grace)
				p.Kill()
			}
		})
	}
}

// observe logs who leads while it is not this member, and whenever that changes.
func (j *job) observe(ctx context.Context, member *tenure.Member) {
	var last tenure.Leadership
	for l := range member.Observe(ctx, j.options.election) {
		switch {
		case ctx.Err() != nil:
			return
		case l.Err != nil:
			j.log.Warn("it is unknown who leads", "election", j.options.election, "err", l.Err)
		case l.Leader == member.ID() || l.Session == last.Session && l.Token == last.Token:
		case l.Vacant() && last.Leader == "":
			j.log.Info("nobody leads", "election", j.options.election, "last token", l.Token)
		case l.Vacant():
			j.log.Info("nobody leads", "election", j.options.election, "formerly", last.Leader, "last token", l.Token)
		default:
			attrs := []any{"election", j.options.election, "leader", l.Leader, "token", l.Token}
			if !l.AcquiredAt.IsZero() { // not every store knows
				attrs = append(attrs, "since", l.AcquiredAt.Format(time.RFC3339))
			}
			j.log.Info("somebody else leads", attrs...)
		}
		if l.Err == nil {
			last = l
		}
	}
}
