package tenure

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gotenure/tenure/driver"
)

// A Term is one uninterrupted hold of one election by one session. It ends exactly once: when it is resigned, when the lease can no longer be
// trusted, or when the store says that it is over. All methods may be called concurrently.
type Term struct {
	stand   *stand
	session *session
	token   uint64
	started time.Time
	ctx     context.Context
	cancel  context.CancelCauseFunc
	managed bool        // Lead runs the work, and knows when it has returned
	ended   atomic.Bool // set after ctx is cancelled

	released chan struct{} // closed when the store has freed it, or cannot hold it any longer

	// Guarded by session.mu.
	endedAt  time.Time // zero: it has not ended
	overrun  *time.Timer
	finished bool // the work is known to have returned
	renewals int  // those that the session had sent before the term began: what they say of it is too old
}

// Election returns the name of the election.
func (t *Term) Election() string { return t.stand.election }

// Token returns the term's fencing token: greater than that of every earlier term of the election.
func (t *Term) Token() uint64 { return t.token }

// Member returns the ID of the member that holds the term.
func (t *Term) Member() string { return t.session.m.cfg.ID }

// Session returns the ID of the session that holds the term.
func (t *Term) Session() string { return t.session.ds.ID() }

// Started returns when the term began on this side, which is a little after the store granted it.
func (t *Term) Started() time.Time { return t.started }

// Context returns the context for the term's work, with the values of the context that the campaign was given. It is cancelled when
// the term ends, at Deadline at the latest; context.Cause then says why: a *LostError, or an error that wraps ErrResigned or ErrLeft.
func (t *Term) Context() context.Context { return t.ctx }

// Done returns a channel that is closed when the term ends.
func (t *Term) Done() <-chan struct{} { return t.ctx.Done() }

// Deadline returns when the term ends unless it is renewed before. It moves with every renewal.
func (t *Term) Deadline() time.Time { return t.session.deadline.Load().at }

// Check returns nil while the term may be trusted, and else why it ended. Call it before each unit of work: unlike the context it notices a deadline that
// passed while the process was stopped or the machine slept before a timer could fire. It costs about one time.Now and does not allocate.
//
// Between a Check and the effect of what follows the process may be stopped for any time: what must not happen twice needs a guard
// at the resource that refuses old tokens.
func (t *Term) Check() error {
	if t.ended.Load() {
		return context.Cause(t.ctx)
	}
	if t.session.deadline.Load().passed(time.Now()) {
		t.session.lapse()
		return context.Cause(t.ctx)
	}
	return nil
}

// Publish replaces the value that is published with the election. An error that is neither ErrLost nor wraps driver.ErrInvalid leaves open
// whether it was replaced.
func (t *Term) Publish(ctx context.Context, value []byte) error {
	if err := t.Check(); err != nil {
		return err
	}
	ctx, cancel := joined(ctx, t.ctx)
	defer cancel()
	rec, err := t.session.acquire(ctx, driver.Bid{Election: t.Election(), Value: value})
	if err == nil && rec.Token == t.token {
		return nil
	}
	if err == nil || isHeld(err) {
		// Somebody deleted or overwrote the record. A term that this call has won by accident is released.
		t.session.disown(t, rec, err == nil)
		return context.Cause(t.ctx)
	}
	return fmt.Errorf("publish value of %s: %w", t.Election(), err)
}

// Resign gives the election up: it cancels the term's context, and releases the election to the next in line. It returns nil when the store has
// freed it, or can no longer hold it for this session. When the context ends before, Resign returns its error and the release goes on in the
// background; calling Resign again waits for it.
//
// Of a term that came from Campaign, stop the work before: at the return of Resign somebody else may lead. In the function that Lead runs, Resign
// only ends the term and returns at once; the election is released when the function has returned.
func (t *Term) Resign(ctx context.Context) error {
	t.session.end(t, ErrResigned)
	if t.managed {
		return nil
	}
	t.finish()
	return t.awaitRelease(ctx)
}

func (t *Term) awaitRelease(ctx context.Context) error {
	select {
	case <-t.released:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("resign %s: %w; the release goes on in the background", t.Election(), context.Cause(ctx))
	}
}

// finish says that the term has ended and its work has returned: from now on the election may be another's.
func (t *Term) finish() {
	s := t.session
	s.mu.Lock()
	if t.finished {
		s.mu.Unlock()
		return
	}
	t.finished = true
	var over time.Duration
	if t.overrun != nil && !t.overrun.Stop() {
		over = time.Since(t.endedAt)
	}
	delete(s.outstanding, t)
	close(s.changed) // wakes retire
	s.changed = make(chan struct{})
	s.mu.Unlock()
	if over > 0 {
		s.m.emit(Overrun{Meta: t.meta(), For: over, Returned: true})
	}
	s.m.release(s, t.stand, t.token, t.released)
}

func (t *Term) meta() Meta { return t.session.metaOf(t.Election(), t.token) }
