package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
)

// Times in this file are virtual: see testing/synctest. With a TTL of 15 s the deadline is 11.85 s after the send of a renewal.
const (
	ttl   = 15 * time.Second
	lease = ttl - ttl/100 - ttl/5
)

func bubble(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newBench(t)) })
}

func leave(t *testing.T, ms ...*tenure.Member) {
	t.Helper()
	for _, m := range ms {
		if err := m.Leave(context.Background()); err != nil {
			t.Errorf("Leave: %v", err)
		}
	}
}

func campaign(t *testing.T, m *tenure.Member, election string) *tenure.Term {
	t.Helper()
	term, err := m.Campaign(t.Context(), election)
	if err != nil {
		t.Fatal(err)
	}
	return term
}

// S2, A2: an answer that comes late prolongs the lease from when the request was sent, not from when the answer came.
func TestDeadlineCountsFromTheSend(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		m := b.join(tenure.Config{TTL: ttl})
		term := campaign(t, m, "e")
		sends := make(chan time.Time, 1)
		b.intercept(nil, func(_ context.Context, op string) error {
			if op == "renew" {
				select {
				case sends <- time.Now():
					time.Sleep(4900 * time.Millisecond)
				default:
				}
			}
			return nil
		})
		time.Sleep(5*time.Second + 4950*time.Millisecond)
		sent := <-sends
		if want := sent.Add(lease); term.Deadline().After(want) {
			t.Errorf("deadline %v is later than %v after the send", term.Deadline().Sub(sent), lease)
		}
		leave(t, m)
	})
}

// S4, A1: a renewal that never returns, and does not heed its context either, ends the term in time all the same.
func TestHungRenewalEndsTheTermInTime(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		m := b.join(tenure.Config{TTL: ttl})
		start := time.Now()
		term := campaign(t, m, "e")
		release := make(chan struct{})
		b.intercept(func(_ context.Context, op string) error {
			if op == "renew" {
				<-release
				return errDown
			}
			return nil
		}, nil)
		<-term.Done()
		if after := time.Since(start); after > lease {
			t.Errorf("the term ended after %v, its lease was for %v", after, lease)
		}
		if !errors.Is(term.Check(), tenure.ErrLost) {
			t.Errorf("Check: %v", term.Check())
		}
		close(release)
		leave(t, m)
	})
}

// S4: every failure is counted, and the error of the loss names their number and the last.
func TestLossIsExplained(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		m := b.join(tenure.Config{TTL: ttl, RetryMin: time.Second, RetryMax: time.Second})
		term := campaign(t, m, "nightly-report")
		time.Sleep(4 * time.Minute)
		b.down(true)
		<-term.Done()
		err := term.Check()
		var lost *tenure.LostError
		if !errors.As(err, &lost) || lost.Failures < 2 || !errors.Is(err, errDown) {
			t.Fatalf("%#v", err)
		}
		for _, part := range []string{"lost leadership of nightly-report after 4m", " renewals failed, last: connection refused"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q lacks %q", err, part)
			}
		}
		b.down(false)
		leave(t, m)
	})
}

// A8: errors for less than the lease cost nothing. A7: after longer ones the member leads again by itself.
func TestOutages(t *testing.T) {
	for _, outage := range []time.Duration{time.Second, 5 * time.Second, ttl, 10 * time.Minute} {
		t.Run(outage.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				m := b.join(tenure.Config{TTL: ttl})
				terms := make(chan *tenure.Term, 10)
				done := make(chan struct{})
				go func() {
					defer close(done)
					_ = m.Lead(t.Context(), "e", func(ctx context.Context, term *tenure.Term) error {
						terms <- term
						return untilDone(ctx, term)
					})
				}()
				first := <-terms
				b.down(true)
				time.Sleep(outage)
				b.down(false)
				if outage < 6*time.Second {
					time.Sleep(time.Minute)
					if err := first.Check(); err != nil {
						t.Errorf("an outage of %v cost the term: %v", outage, err)
					}
				} else {
					healed := time.Now()
					second := <-terms
					if took := time.Since(healed); took > 2*ttl {
						t.Errorf("led again %v after the store was back", took)
					}
					if second.Token() <= first.Token() {
						t.Errorf("token %d after %d", second.Token(), first.Token())
					}
				}
				leave(t, m)
				<-done
			})
		})
	}
}

// S5, A3: the election is released after the work has returned, not when it is told to.
func TestReleaseAfterTheWork(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		a, c := b.join(tenure.Config{ID: "a", TTL: ttl}), b.join(tenure.Config{ID: "c", TTL: ttl})
		ctx, cancel := context.WithCancel(t.Context())
		started, returned := make(chan struct{}), make(chan error)
		var workReturned time.Time
		go func() {
			returned <- a.Lead(ctx, "e", func(ctx context.Context, _ *tenure.Term) error {
				close(started)
				<-ctx.Done()
				time.Sleep(2 * time.Second) // takes its time to stop
				workReturned = time.Now()
				return nil
			})
		}()
		<-started
		go cancel()
		term := campaign(t, c, "e")
		if err := <-returned; !errors.Is(err, context.Canceled) {
			t.Errorf("Lead: %v", err)
		}
		if term.Started().Before(workReturned) {
			t.Errorf("the successor led %v before the work had returned", workReturned.Sub(term.Started()))
		}
		leave(t, a, c)
	})
}

// A3, A11, F7: work that does not return keeps its lease until that lapses, is reported, and holds Leave up no longer than the lease.
func TestWorkThatDoesNotReturn(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		a, c := b.join(tenure.Config{ID: "a", TTL: ttl}), b.join(tenure.Config{ID: "c", TTL: ttl})
		started, never, leadReturned := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go func() {
			defer close(leadReturned)
			_ = a.Lead(t.Context(), "e", func(context.Context, *tenure.Term) error {
				close(started)
				<-never
				return nil
			})
		}()
		<-started
		began := time.Now()
		won := make(chan time.Duration)
		go func() {
			term := campaign(t, c, "e")
			won <- term.Started().Sub(began)
		}()
		err := a.Leave(context.Background())
		if err == nil || !strings.Contains(err.Error(), "work of e has not returned") {
			t.Errorf("Leave: %v", err)
		}
		if took := time.Since(began); took > ttl+ttl/5 {
			t.Errorf("Leave took %v", took)
		}
		if after := <-won; after < ttl-time.Second-ttl/3 {
			t.Errorf("the successor led after %v although the work still ran", after)
		}
		if over := eventsOf[tenure.Overrun](b); len(over) != 1 || over[0].Election != "e" {
			t.Errorf("overruns: %v", over)
		}
		close(never)
		<-leadReturned
		synctest.Wait()
		if over := eventsOf[tenure.Overrun](b); len(over) != 2 || !over[1].Returned {
			t.Errorf("overruns after the return: %v", over)
		}
		leave(t, c)
	})
}

// A5: the record was deleted by an operator: the leader is told at once where the store pushes, and the token does not restart.
func TestDeletedRecord(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		m := b.join(tenure.Config{TTL: ttl})
		term := campaign(t, m, "e")
		b.DeleteRecord("e")
		began := time.Now()
		<-term.Done()
		if took := time.Since(began); took > time.Second {
			t.Errorf("told after %v", took)
		}
		if err := term.Check(); !errors.Is(err, tenure.ErrLost) || !strings.Contains(err.Error(), "deleted or overwrote") {
			t.Errorf("Check: %v", err)
		}
		if next := campaign(t, m, "e"); next.Token() <= term.Token() {
			t.Errorf("token %d after %d", next.Token(), term.Token())
		}
		leave(t, m)
	})
}

// A9: of a session that was lost nothing is kept alive, so that others can lead.
func TestLostSessionIsNotRenewed(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		m, other := b.join(tenure.Config{ID: "a", TTL: ttl}), b.join(tenure.Config{ID: "b", TTL: ttl})
		term := campaign(t, m, "e")
		b.intercept(nil, func(_ context.Context, op string) error {
			if op == "renew" { // applied, but nobody is told
				return errDown
			}
			return nil
		})
		<-term.Done()
		b.intercept(nil, nil)
		began := time.Now()
		next := campaign(t, other, "e")
		if took := time.Since(began); took > ttl {
			t.Errorf("the other led after %v", took)
		}
		_ = next.Resign(t.Context())
		leave(t, m, other)
	})
}

// A6, B10, S6: whatever answer was lost, a resignation ends in a free election.
func TestResignThroughLostAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		m, other := b.join(tenure.Config{ID: "a", TTL: ttl}), b.join(tenure.Config{ID: "b", TTL: ttl})
		term := campaign(t, m, "e")
		lost := 3
		b.intercept(nil, func(_ context.Context, op string) error {
			if op == "release" && lost > 0 {
				lost--
				return errDown
			}
			return nil
		})
		short, cancel := context.WithTimeout(t.Context(), time.Microsecond)
		defer cancel()
		b.mu.Lock()
		b.before = func(ctx context.Context, op string) error {
			if op == "release" && short.Err() == nil {
				<-ctx.Done() // the first attempt hangs
				return ctx.Err()
			}
			return nil
		}
		b.mu.Unlock()
		if err := term.Resign(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Resign with a short context: %v", err)
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Errorf("Resign again: %v", err)
		}
		if l := b.leader("e"); l != "" {
			t.Errorf("%s leads", l)
		}
		if next := campaign(t, other, "e"); next.Token() <= term.Token() {
			t.Errorf("token %d after %d", next.Token(), term.Token())
		}
		leave(t, m, other)
	})
}

// B1, B4: whenever a campaign is cancelled, and whatever answers were lost, nothing of it stays at the store.
func TestCancelledCampaignLeavesNothing(t *testing.T) {
	for seed := range uint64(200) {
		bubble(t, func(t *testing.T, b *bench) {
			r := rand.New(rand.NewPCG(seed, 0))
			var mu sync.Mutex // never held across a sleep, which would stop the bubble's clock
			draw := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return r.IntN(n)
			}
			pause := func() { time.Sleep(time.Duration(draw(20)) * time.Millisecond) }
			m, other := b.join(tenure.Config{ID: "a", TTL: ttl}), b.join(tenure.Config{ID: "b", TTL: ttl})
			b.intercept(func(ctx context.Context, op string) error {
				if op == "acquire" {
					pause()
				}
				return nil
			}, func(ctx context.Context, op string) error {
				if op == "acquire" || op == "release" {
					pause()
					if draw(3) == 0 {
						return errDown
					}
				}
				return nil
			})
			for range 5 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(draw(60))*time.Millisecond)
				if term, err := m.Campaign(ctx, "e"); err == nil {
					_ = term.Resign(t.Context())
				}
				cancel()
			}
			b.intercept(nil, nil)
			term, err := other.Campaign(t.Context(), "e")
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if waited := term.Started(); time.Since(waited) > ttl {
				t.Errorf("seed %d: waited %v", seed, waited)
			}
			time.Sleep(2 * ttl)
			if err := term.Check(); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			leave(t, other)
			if l := b.leader("e"); l != "" {
				t.Errorf("seed %d: %s leads although it cancelled", seed, l)
			}
			leave(t, m)
		})
	}
}

// B1, A13: a candidate whose own session lapses while it waits is not told that it leads; it stands again with a new one.
func TestSessionLostWhileWaiting(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		a, c := b.join(tenure.Config{ID: "a", TTL: ttl}), b.join(tenure.Config{ID: "c", TTL: ttl})
		first := campaign(t, a, "e")
		won := make(chan *tenure.Term)
		go func() { won <- campaign(t, c, "e") }()
		synctest.Wait()
		old := eventsOf[tenure.SessionOpened](b)[1].Session
		b.DropSession(old)
		time.Sleep(ttl)
		if err := first.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		second := <-won
		if second.Session() == old {
			t.Error("leads with the session that was dropped")
		}
		if b.leader("e") != "c" {
			t.Errorf("%s leads at the store", b.leader("e"))
		}
		leave(t, a, c)
	})
}

// A driver that waits until its context ends says why it waited, and that is what the member's owner hears.
func TestWhyItWaitedIsHeard(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		m := b.join(tenure.Config{ID: "a", TTL: ttl})
		waits := func(ctx context.Context, op string) error {
			if op == "renew" {
				return driver.ErrSessionLost
			}
			<-ctx.Done()
			time.Sleep(time.Millisecond)
			return fmt.Errorf("process 7 has the lock: %w", ctx.Err())
		}
		b.intercept(waits, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if _, err := m.Campaign(ctx, "e"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Campaign: %v", err)
		}
		var told []error
		for _, e := range eventsOf[tenure.CampaignFailed](b) {
			told = append(told, e.Err)
		}
		for _, e := range eventsOf[tenure.SessionFailed](b) {
			told = append(told, e.Err)
		}
		if len(told) < 5 {
			t.Errorf("%d failures were told", len(told))
		}
		for _, err := range told {
			if !strings.Contains(err.Error(), "process 7") {
				t.Errorf("it does not say why: %v", err)
			}
		}
		b.intercept(nil, nil)
		leave(t, m)
		time.Sleep(time.Second) // the last call returns
	})
}

// L3: a store that opens sessions and loses them at the first use, as one does of which a part was removed, is asked less and less often.
func TestStillbornSessions(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		m := b.join(tenure.Config{ID: "a", TTL: ttl})
		b.intercept(func(_ context.Context, op string) error {
			if op == "acquire" {
				return driver.ErrSessionLost
			}
			return nil
		}, nil)
		won := make(chan *tenure.Term)
		go func() { won <- campaign(t, m, "e") }()
		time.Sleep(time.Minute)
		if n := b.opens.Load(); n < 5 || n > 200 {
			t.Errorf("%d sessions opened within a minute", n)
		}
		b.intercept(nil, nil)
		healed := time.Now()
		term := <-won
		if took := time.Since(healed); took > ttl {
			t.Errorf("led %v after the store was mended", took)
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		leave(t, m)
	})
}

// S7, B5: two processes with one ID are two sessions. The second waits, and both are told.
func TestNamesakes(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		a, c := b.join(tenure.Config{ID: "same", TTL: ttl}), b.join(tenure.Config{ID: "same", TTL: ttl})
		campaign(t, a, "e")
		if _, err := c.TryCampaign(t.Context(), "e"); !errors.Is(err, tenure.ErrHeld) {
			t.Errorf("the namesake's campaign: %v", err)
		}
		time.Sleep(ttl)
		told := map[string]bool{}
		for _, e := range eventsOf[tenure.NamesakeSeen](b) {
			told[e.Session] = true
		}
		if len(told) != 2 {
			t.Errorf("%d sessions were told of the clash, want 2", len(told))
		}
		leave(t, a, c)
	})
}

// B7: every start has its end, in that order, once, through losses and hand-overs; and C2: one heartbeat, however many elections.
func TestEventsArePaired(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		m := b.join(tenure.Config{TTL: ttl})
		const n = 1000
		for i := range n {
			campaign(t, m, fmt.Sprint("e", i))
		}
		before := b.renewals.Load()
		time.Sleep(10 * time.Minute)
		if per := float64(b.renewals.Load()-before) / (600 / (ttl / 3).Seconds()); per > 1.2 {
			t.Errorf("%.2f renewals per interval for %d elections", per, n)
		}
		b.down(true)
		time.Sleep(2 * ttl)
		b.down(false)
		leave(t, m)
		state := map[uint64]int{}
		for _, e := range b.events {
			meta := tenure.MetaOf(e)
			switch e.(type) {
			case tenure.TermStarted:
				if state[meta.Token]++; state[meta.Token] != 1 {
					t.Errorf("token %d started in state %d", meta.Token, state[meta.Token])
				}
			case tenure.TermEnded:
				if state[meta.Token]++; state[meta.Token] != 2 {
					t.Errorf("token %d ended in state %d", meta.Token, state[meta.Token])
				}
			}
		}
		if len(state) != n {
			t.Errorf("%d terms, want %d", len(state), n)
		}
	})
}

// C3: leaving is bounded although the store hangs.
func TestLeaveWithTheStoreHung(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		m := b.join(tenure.Config{TTL: ttl})
		campaign(t, m, "e")
		release := make(chan struct{})
		b.intercept(func(context.Context, string) error { <-release; return errDown }, nil)
		began := time.Now()
		if err := m.Leave(context.Background()); err == nil {
			t.Error("Leave says that all is released")
		}
		if took := time.Since(began); took > ttl+ttl/5 {
			t.Errorf("Leave took %v", took)
		}
		close(release)
	})
}

// L5: a member that lost an election waits before it stands again, while another may win at once.
func TestNoFlapping(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		m := b.join(tenure.Config{TTL: ttl, StablePeriod: 40 * time.Second})
		campaign(t, m, "e")
		b.DeleteRecord("e")
		synctest.Wait()
		lostAt := time.Now()
		term := campaign(t, m, "e")
		if waited := term.Started().Sub(lostAt); waited < 39*time.Second {
			t.Errorf("stood again after %v", waited)
		}
		leave(t, m)
	})
}

// L1: a vacancy is filled without a polling interval.
func TestVacancyIsFilledAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		a, c := b.join(tenure.Config{ID: "a", TTL: ttl}), b.join(tenure.Config{ID: "c", TTL: ttl})
		term := campaign(t, a, "e")
		won := make(chan *tenure.Term)
		go func() { won <- campaign(t, c, "e") }()
		time.Sleep(time.Minute)
		at := time.Now()
		if err := term.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := (<-won).Started().Sub(at); took > 0 {
			t.Errorf("took %v of virtual time", took)
		}
		leave(t, a, c)
	})
}

// L2: a leader that dies is replaced within its TTL.
func TestDeadLeaderIsReplaced(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		dead, err := b.Store.Open(t.Context(), "dead", ttl)
		if err != nil {
			t.Fatal(err)
		}
		m := b.join(tenure.Config{TTL: ttl})
		at := time.Now()
		if _, err := dead.Acquire(t.Context(), bid("e")); err != nil {
			t.Fatal(err)
		}
		if took := campaign(t, m, "e").Started().Sub(at); took > ttl+time.Millisecond {
			t.Errorf("replaced after %v", took)
		}
		leave(t, m)
	})
}

// S2: a store that grants less than was asked for is believed.
func TestShorterGrant(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.grant = 8 * time.Second
		m := b.join(tenure.Config{TTL: ttl})
		term := campaign(t, m, "e")
		time.Sleep(5 * time.Second) // virtual: one renewal
		if left, most := time.Until(term.Deadline()), 8*time.Second-ttl/100-ttl/5; left > most {
			t.Errorf("trusted for another %v, of which the store granted %v", left, most)
		}
		leave(t, m)
	})
}
