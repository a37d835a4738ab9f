package tenure

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// events hands events to the logger and the observer, in order, without ever blocking who emits them: a logger whose pipe is full must not
// hold up a renewal.
type events struct {
	logger   *slog.Logger // nil: silent
	observer func(Event)  // nil: none
	mu       sync.Mutex
	queue    []Event
	done     chan struct{} // closed when all that was emitted is delivered; nil while nothing is under way
}

func (q *events) emit(e Event) {
	if q.observer == nil && q.logger == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = append(q.queue, e)
	if q.done == nil {
		q.done = make(chan struct{})
		go q.deliver(q.done)
	}
}

func (q *events) deliver(done chan struct{}) {
	defer close(done)
	for {
		q.mu.Lock()
		batch := q.queue
		q.queue = nil
		if len(batch) == 0 {
			q.done = nil
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		for _, e := range batch {
			if q.logger != nil {
				logEvent(q.logger, e)
			}
			if q.observer != nil {
				q.observer(e)
			}
		}
	}
}

// flush waits until all that was emitted before is delivered, or the context ends.
func (q *events) flush(ctx context.Context) {
	q.mu.Lock()
	done := q.done
	q.mu.Unlock()
	if done == nil {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// logEvent writes the line of an event for the person on call.
func logEvent(l *slog.Logger, e Event) {
	m := e.meta()
	level, msg := slog.LevelInfo, ""
	attrs := make([]slog.Attr, 0, 8)
	add := func(key string, v any) { attrs = append(attrs, slog.Any(key, v)) }
	if m.Election != "" {
		add("election", m.Election)
	}
	add("member", m.Member)
	if m.Session != "" {
		add("session", m.Session)
	}
	if m.Token != 0 {
		add("token", m.Token)
	}
	round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	switch e := e.(type) {
	case SessionOpened:
		level, msg = slog.LevelDebug, "session opened"
	case SessionEnded:
		level, msg = slog.LevelWarn, "session lost"
		if errors.Is(e.Reason, ErrLeft) || errors.Is(e.Reason, ErrResigned) {
			level, msg = slog.LevelDebug, "session closed"
		} else {
			add("reason", e.Reason)
		}
	case SessionFailed:
		level, msg = slog.LevelWarn, "could not open a session, trying again"
		add("err", e.Err)
	case Renewed:
		level, msg = slog.LevelDebug, "renewed"
		add("took", e.Took)
	case RenewFailed:
		level, msg = slog.LevelWarn, "renewal failed"
		add("failures", e.Failures)
		add("remaining", round(e.Deadline.Sub(m.At)))
		add("err", e.Err)
	case TermStarted:
		msg = "leading"
		add("waited", round(e.Waited))
	case TermEnded:
		if errors.Is(e.Reason, ErrLost) {
			level, msg = slog.LevelWarn, e.Reason.Error()
		} else {
			msg = "stepping down"
			add("reason", e.Reason)
		}
		add("held", round(e.Held))
	case TermReleased:
		msg = "released"
	case Overrun:
		level, msg = slog.LevelError, "work still runs although its term has ended: it may overlap with the next leader's"
		if e.Returned {
			level, msg = slog.LevelWarn, "work has returned, long after its term ended"
		}
		add("after", round(e.For))
	case CampaignFailed:
		level, msg = slog.LevelWarn, "could not stand, trying again"
		add("err", e.Err)
	case ReleaseFailed:
		level, msg = slog.LevelWarn, "could not release, trying again"
		add("err", e.Err)
	case NamesakeSeen:
		level, msg = slog.LevelWarn, "another live session has this member's ID: give every process its own; a former session of this one lapses by itself"
		add("other", e.Other)
	}
	l.LogAttrs(context.Background(), level, msg, attrs...)
}
