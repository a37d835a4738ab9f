package drivertest

import (
	"context"
	"iter"

	"github.com/gotenure/tenure/driver"
)

// Watch follows an election. Each state that it yields is a Call with the Method Event; one that is lost as an Answer ends the watch.
func (f *Faults) Watch(ctx context.Context, election string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		if err := read(ctx, f, Call{Method: "Watch", Election: election}); err != nil {
			yield(driver.Record{}, err)
			return
		}
		cut, _, _ := f.severed()
		watching, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(cut, cancel)()
		var before []driver.Record // at most one
		for r, err := range f.store.Watch(watching, election) {
			if err != nil {
				if ctx.Err() == nil && watching.Err() != nil {
					err = ErrInjected // the store below was told to end, not by the caller
					if _, _, cutErr := f.severed(); cutErr != nil {
						err = cutErr
					}
				}
				if !yield(r, err) {
					return
				}
				continue
			}
			states := []driver.Record{r}
			fault := f.begin(Call{Method: "Event", Election: election, Token: r.Token})
			if fault.Act != nil {
				fault.Act()
			}
			switch {
			case !sleep(watching, fault.Before+fault.After):
				continue // the store below says why
			case fault.Lose == Answer:
				yield(driver.Record{}, fault.err())
				return
			case fault.Lose == Request:
				continue
			case fault.Stale:
				states = append(append(states, before...), r)
			case fault.Twice:
				states = append(states, r)
			}
			before = []driver.Record{r}
			for _, state := range states {
				if !yield(state, nil) {
					return
				}
			}
		}
	}
}

// A faultySession is a session of Faults.
type faultySession struct {
	f        *Faults
	s        driver.Session
	member   string
	renewing chan struct{} // full while the session below renews, which it does once at a time
}

func (s *faultySession) call(method, election string, token uint64) Call {
	return Call{Method: method, Member: s.member, Session: s.s.ID(), Election: election, Token: token}
}

func (s *faultySession) ID() string { return s.s.ID() }

func (s *faultySession) Changed() <-chan struct{} { return s.s.Changed() }

func (s *faultySession) KeepAlive(ctx context.Context) (driver.Grant, error) {
	return do(ctx, s.f, s.call("KeepAlive", "", 0), func(ctx context.Context) (driver.Grant, error) {
		select {
		case s.renewing <- struct{}{}:
		case <-ctx.Done():
			return driver.Grant{}, ended(ctx)
		}
		defer func() { <-s.renewing }()
		return s.s.KeepAlive(ctx)
	})
}

func (s *faultySession) Acquire(ctx context.Context, bid driver.Bid) (driver.Record, error) {
	bid.Value = append([]byte(nil), bid.Value...) // the request may outlive the call
	return do(ctx, s.f, s.call("Acquire", bid.Election, 0), func(ctx context.Context) (driver.Record, error) {
		return s.s.Acquire(ctx, bid)
	})
}

func (s *faultySession) Await(ctx context.Context, election string) error {
	if err := read(ctx, s.f, s.call("Await", election, 0)); err != nil {
		return err
	}
	err := s.s.Await(ctx, election)
	for ctx.Err() == nil {
		_, healed, cutErr := s.f.severed()
		switch {
		case healed == nil:
			return err
		case cutErr != nil:
			return cutErr
		}
		select { // what happened meanwhile is heard when the store can be reached again
		case <-healed:
		case <-ctx.Done():
			return ended(ctx)
		case <-s.f.ctx.Done():
			return errClosed
		}
	}
	return err
}

func (s *faultySession) Release(ctx context.Context, election string, token uint64) error {
	_, err := do(ctx, s.f, s.call("Release", election, token), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.s.Release(ctx, election, token)
	})
	return err
}

// Close closes the session below even if the request is lost, with a context that has ended: so that its resources here are freed.
func (s *faultySession) Close(ctx context.Context) error {
	_, err := do(ctx, s.f, s.call("Close", "", 0), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.s.Close(ctx)
	})
	if err != nil {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.s.Close(ended)
	}
	return err
}
