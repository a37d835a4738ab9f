package tenure

import (
	"context"
	"errors"
	"fmt"
)

// Lead runs work whenever this member leads the election, one run at a time, until work returns of its own accord or the context ends.
//
// The work's context has the values of ctx. It is cancelled when ctx is or when the term ends; the work should return soon after, within
// Config.StopTimeout, and should call term.Check before each unit of what must not be done by two. After a loss, or a hand-over that somebody asked for,
// Lead waits for the work to return and stands again. What the work returned then is of no consequence.
//
// When the work returns while its term is live, Lead resigns and returns the work's error. When ctx ends, Lead waits for the work to return,
// resigns, and returns the cause of ctx. Other errors: ErrStanding, ErrLeft, or one that wraps driver.ErrInvalid. Lead returns after the release
// was confirmed or the session is over. Should the work panic, the election is resigned while the panic goes on.
func (m *Member) Lead(ctx context.Context, election string, work func(ctx context.Context, term *Term) error) error {
	c := candidacy{wait: true, managed: true}
	for {
		t, err := m.campaign(ctx, election, c)
		if err != nil {
			return err
		}
		c.served = true
		err = m.serve(ctx, t, work)
		reason := context.Cause(t.ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(reason, ErrLeft):
			return ErrLeft
		case errors.Is(reason, errWorkDone):
			return err
		case !m.info.Queue:
			m.cool(election) // without a queue the others are given the time to win
		}
	}
}

// errWorkDone is why a term ended whose work returned of its own accord.
var errWorkDone = fmt.Errorf("%w: the work has returned", ErrResigned)

// serve runs the work of one term, and returns when the term is released.
func (m *Member) serve(ctx context.Context, t *Term, work func(context.Context, *Term) error) error {
	stop := context.AfterFunc(ctx, func() {
		t.session.end(t, fmt.Errorf("%w: %w", ErrResigned, context.Cause(ctx)))
	})
	defer func() {
		stop()
		t.session.end(t, errWorkDone)
		t.finish()
		<-t.released
	}()
	return work(t.ctx, t)
}

// Resign hands over an election that this member leads: it cancels the term's context, waits for the work that Lead runs, and releases. It returns
// nil when the store has freed the election. When the context ends before, the hand-over goes on in the background. ErrNotLeading when
// this member does not lead the election.
func (m *Member) Resign(ctx context.Context, election string) error {
	m.mu.Lock()
	var t *Term
	if st := m.stands[election]; st != nil {
		t = st.term
	}
	m.mu.Unlock()
	if t == nil {
		return fmt.Errorf("resign %s: %w", election, ErrNotLeading)
	}
	if err := t.Resign(ctx); err != nil {
		return err
	}
	return t.awaitRelease(ctx)
}
