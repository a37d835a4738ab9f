package tenure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gotenure/tenure/driver"
)

// A stand is a member's one standing in an election: from the start of a campaign until nothing of it is left at the store.
type stand struct {
	election string
	done     chan struct{} // closed when it is over

	// Guarded by Member.mu.
	term      *Term    // nil while it campaigns
	own       *session // the session that is only for this stand, where the store cannot share them
	releasing bool     // what is left of it is being released: a new campaign waits for that
	over      bool
}

// Campaign waits until this member leads the election, and returns the term. It retries whatever fails until the context ends, and then leaves
// nothing behind at the store. Errors: ErrStanding, ErrLeft, the cause of the context, or one that wraps driver.ErrInvalid, which the store's first answer
// may be: once it has served the member there, what it refuses is retried too.
//
// The term's context has the values of ctx but not its cancellation. When the term is no longer wanted, or has ended, stop its work and
// call Term.Resign.
func (m *Member) Campaign(ctx context.Context, election string) (*Term, error) {
	return m.campaign(ctx, election, candidacy{wait: true})
}

// TryCampaign makes one attempt to lead the election, and does not wait for whoever leads it: then it returns a *HeldError, which
// matches ErrHeld. After any other error nothing stays behind at the store either; see Campaign.
func (m *Member) TryCampaign(ctx context.Context, election string) (*Term, error) {
	return m.campaign(ctx, election, candidacy{})
}

// A candidacy is how a campaign is led.
type candidacy struct {
	wait    bool // for whoever leads, and through errors
	managed bool // Lead runs the term's work
	began   time.Time
	sent    bool // a request was sent that may have left something at the store
	served  bool // the store has answered in this election: a bid that it takes for invalid later was not so from the start
}

func (m *Member) campaign(ctx context.Context, election string, c candidacy) (*Term, error) {
	if err := driver.CheckName("election", election); err != nil {
		return nil, err
	}
	ctx, cancel := joined(ctx, m.ctx)
	defer cancel()
	st, err := m.enter(ctx, election)
	if err != nil {
		return nil, fmt.Errorf("stand in election %s: %w", election, err)
	}
	c.began = time.Now()
	for {
		if c.wait {
			err = m.cooled(ctx, election)
		}
		var s *session
		if err == nil {
			s, err = m.live(ctx, st, c.wait)
		}
		if err != nil {
			m.exit(st)
			break
		}
		t, standErr := m.standWith(ctx, s, st, &c)
		if standErr == nil {
			if m.ctx.Err() == nil {
				return t, nil
			}
			s.end(t, ErrLeft) // Leave may have come too early to see this term
			t.finish()
			return nil, ErrLeft
		}
		err = standErr
		if s.ctx.Err() != nil && c.wait && ctx.Err() == nil {
			continue // what the session held went with it
		}
		if c.sent && s.ctx.Err() == nil {
			m.release(s, st, 0, nil)
		} else {
			m.exit(st)
		}
		break
	}
	if held := (*HeldError)(nil); errors.As(err, &held) {
		return nil, err
	}
	return nil, fmt.Errorf("stand in election %s: %w", election, err)
}

// standWith stands with one session until it wins, the session or the context ends, or an error is final.
func (m *Member) standWith(ctx context.Context, s *session, st *stand, c *candidacy) (*Term, error) {
	ctx, cancel := joined(ctx, s.ctx)
	defer cancel()
	for failures := 0; ; {
		rec, err := s.acquire(ctx, driver.Bid{Election: st.election, Value: m.cfg.Value, Queue: c.wait})
		c.sent = c.wait || !isHeld(err)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		c.served = c.served || err == nil || isHeld(err)
		switch {
		case err == nil:
			return s.adopt(ctx, st, rec.Token, *c)
		case isHeld(err):
			failures = 0
			if rec.Leader == m.cfg.ID && rec.Session != s.ds.ID() {
				s.clash(rec.Session)
			}
			if !c.wait {
				return nil, &HeldError{Leadership: leadershipOf(rec)}
			}
			if err = await(ctx, s.ds, st.election); err == nil {
				continue
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, driver.ErrSessionLost):
			s.lose(fmt.Errorf("the store says: %w", err))
			return nil, err
		case errors.Is(err, driver.ErrInvalid) && !c.served || !c.wait:
			return nil, err
		}
		failures++
		m.emit(CampaignFailed{Meta: s.metaOf(st.election, 0), Err: err})
		if err := sleep(ctx, m.backoff(failures)); err != nil {
			return nil, err
		}
	}
}

// await waits until it is worth trying to acquire again.
func await(ctx context.Context, ds driver.Session, election string) error {
	if w, ok := ds.(driver.Waker); ok {
		if wake := w.Wake(election); wake != nil {
			select {
			case <-wake:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	_, err := call(ctx, 0, func(ctx context.Context) (struct{}, error) { return struct{}{}, ds.Await(ctx, election) }, nil)
	return err
}

// enter begins a stand, after what is left of the one before has been released.
func (m *Member) enter(ctx context.Context, election string) (*stand, error) {
	for {
		m.mu.Lock()
		if m.left {
			m.mu.Unlock()
			return nil, ErrLeft
		}
		old := m.stands[election]
		if old == nil {
			st := &stand{election: election, done: make(chan struct{})}
			m.stands[election] = st
			m.mu.Unlock()
			return st, nil
		}
		releasing := old.releasing
		m.mu.Unlock()
		if !releasing {
			return nil, ErrStanding
		}
		select {
		case <-old.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// exit ends a stand, unless it has ended. It may be called with session.mu held.
func (m *Member) exit(st *stand) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if st.over {
		return
	}
	st.over = true
	if own := st.own; own != nil {
		go own.finish(ErrResigned, func(*Term) error { return ErrResigned })
	}
	delete(m.stands, st.election)
	close(st.done)
	m.shrunk()
}

// release releases in the background what the session holds of the election, its place in the queue included when token is 0, until the store
// has said that it is free or the session is over. Then it ends the stand and closes released.
func (m *Member) release(s *session, st *stand, token uint64, released chan struct{}) {
	m.mu.Lock()
	st.releasing = true
	m.mu.Unlock()
	go func() {
		if m.releaseAt(s, st.election, token) {
			if token != 0 {
				m.emit(TermReleased{Meta: s.metaOf(st.election, token)})
			}
			m.exit(st)
		} else {
			m.exit(st)
			<-s.retired
		}
		if released != nil {
			close(released)
		}
	}()
}

// releaseAt reports whether the store has confirmed the release; otherwise the session is over.
func (m *Member) releaseAt(s *session, election string, token uint64) bool {
	for failures := 1; ; failures++ {
		_, err := bounded(s.ctx, m, m.cfg.RenewInterval, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, s.ds.Release(ctx, election, token)
		})
		if err == nil {
			return true
		}
		if s.ctx.Err() != nil {
			return false
		}
		if errors.Is(err, driver.ErrSessionLost) {
			s.lose(fmt.Errorf("the store says: %w", err))
			return false
		}
		m.emit(ReleaseFailed{Meta: s.metaOf(election, token), Err: err})
		if errors.Is(err, driver.ErrInvalid) && m.standsOnlyIn(election) {
			// The store does not allow it, and may never. The session is for nothing else: its end frees the election.
			s.lose(fmt.Errorf("the store refuses to release %s: %w", election, err))
			return false
		}
		if sleep(s.ctx, m.backoff(failures)) != nil {
			return false
		}
	}
}

func (m *Member) standsOnlyIn(election string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stands[election] != nil && len(m.stands) == 1
}

// releaseStray releases what the store says that the session holds although nobody here stands for it: the effect of a request whose answer was lost after its
// caller had given up.
func (m *Member) releaseStray(s *session, election string, token uint64) {
	m.mu.Lock()
	if m.stands[election] != nil {
		m.mu.Unlock()
		return
	}
	st := &stand{election: election, done: make(chan struct{}), releasing: true}
	m.stands[election] = st
	m.mu.Unlock()
	m.release(s, st, token, nil)
}
