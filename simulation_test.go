package tenure_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver/drivertest"
	"github.com/gotenure/tenure/store/memory"
)

var (
	simulationSeed  = flag.Int64("simulation.seed", -1, "run the simulation with this seed only")
	simulationSeeds = flag.Int64("simulation.seeds", 2000, "how many seeds the simulation runs")
)

// TestSimulation runs the core under virtual time with a random schedule for each seed: members on a network that loses, delays, repeats and withholds
// requests and answers, partitions, operators who delete records and revoke sessions, work that takes its time to stop, hand-overs, members that leave
// and come back. The verifier watches the rules meanwhile, and in the end, when all is well again, every election must find a leader.
func TestSimulation(t *testing.T) {
	first, n := int64(0), *simulationSeeds
	if testing.Short() {
		n = min(n, 100)
	}
	if *simulationSeed >= 0 {
		first, n = *simulationSeed, 1
	}
	terms := 0
	for seed := first; seed < first+n && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("replay with: go test -run 'TestSimulation$' -simulation.seed=%d .", seed)
				}
			}()
			terms += simulate(t, uint64(seed))
		})
	}
	if want := int(n); terms < want {
		t.Errorf("%d terms in %d seeds: too few to have tested anything", terms, n)
	}
	t.Logf("%d seeds, %d terms", n, terms)
}

// A simulation is one story.
type simulation struct {
	t        *testing.T
	place    *memory.Store
	verifier drivertest.Verifier
	cfg      tenure.Config

	mu  sync.Mutex
	rng *rand.Rand
}

func (s *simulation) draw(n time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.rng.Int64N(int64(n)))
}

func (s *simulation) record(kind drivertest.EventKind, member, session, election string, token uint64, deadline time.Time) {
	s.verifier.Record(drivertest.Event{Kind: kind, At: time.Now(), Member: member, Session: session, Election: election, Token: token, Deadline: deadline})
}

// observe translates the core's events for the verifier. They carry the time at which they happened.
func (s *simulation) observe(e tenure.Event) {
	meta := tenure.MetaOf(e)
	ev := drivertest.Event{At: meta.At, Member: meta.Member, Session: meta.Session, Election: meta.Election, Token: meta.Token}
	switch e := e.(type) {
	case tenure.TermStarted:
		ev.Kind, ev.Deadline = drivertest.Started, e.Deadline
	case tenure.Renewed:
		ev.Kind, ev.Deadline = drivertest.Renewed, e.Deadline
	case tenure.TermEnded:
		ev.Kind = drivertest.Ended
	case tenure.Overrun:
		if e.Returned {
			return
		}
		ev.Kind = drivertest.Overran
	default:
		return
	}
	s.verifier.Record(ev)
}

// work does a unit of work now and then, and stops in time, or a little late.
func (s *simulation) work(ctx context.Context, term *tenure.Term) error {
	defer func() {
		s.record(drivertest.Returned, term.Member(), term.Session(), term.Election(), term.Token(), time.Time{})
	}()
	for range 1 + s.draw(20) {
		select {
		case <-time.After(s.draw(2 * time.Second)):
		case <-ctx.Done():
			time.Sleep(s.draw(s.cfg.StopTimeout))
			return nil
		}
		if term.Check() == nil {
			s.record(drivertest.Worked, term.Member(), term.Session(), term.Election(), term.Token(), time.Time{})
		}
	}
	if s.draw(3) == 0 {
		return errors.New("the work has failed")
	}
	return nil
}

func simulate(t *testing.T, seed uint64) (terms int) {
	s := &simulation{
		t: t, place: memory.New(), rng: rand.New(rand.NewPCG(seed, 1)),
		cfg: tenure.Config{TTL: 10 * time.Second, StopTimeout: time.Second},
	}
	defer s.place.Close()
	s.cfg.Observer = s.observe
	elections := []string{"e0", "e1"}
	acts := []func(drivertest.Call){
		func(c drivertest.Call) {
			// What was deleted is told by the deletion: a look before it can miss who wins in between.
			if rec, ok := s.place.DeleteRecord(elections[s.draw(2)]); ok && rec.Held() {
				s.record(drivertest.Robbed, rec.Leader, rec.Session, rec.Election, rec.Token, time.Time{})
			}
		},
		func(c drivertest.Call) {
			if c.Session != "" {
				s.record(drivertest.Robbed, c.Member, c.Session, "", 0, time.Time{})
				s.place.DropSession(c.Session)
			}
		},
	}
	story, end := context.WithTimeout(t.Context(), 2*time.Minute)
	defer end()
	var members sync.WaitGroup
	calm := make(chan struct{}) // closed when all is well again
	for i := range 3 {
		chaos := drivertest.Chaos{Seed: seed*3 + uint64(i), Rate: 0.25, Delay: 8 * time.Second, Hang: true, Deaf: true, Acts: acts}
		script := chaos.Script()
		store := drivertest.NewFaults(s.place.Share(), func(c drivertest.Call) drivertest.Fault {
			if story.Err() != nil {
				return drivertest.Fault{}
			}
			return script(c)
		})
		members.Go(func() {
			defer store.Close()
			for life := 0; story.Err() == nil; life++ {
				s.live(story, store, fmt.Sprintf("m%d.%d", i, life), elections, nil)
			}
			store.Heal()
			store.Wake()
			s.live(t.Context(), store, fmt.Sprintf("m%d.end", i), elections, calm)
		})
		members.Go(func() { // partitions
			for story.Err() == nil {
				time.Sleep(s.draw(40 * time.Second))
				if story.Err() != nil {
					return
				}
				if s.draw(2) == 0 {
					store.Cut(nil)
				} else {
					store.Cut(errDown)
				}
				time.Sleep(s.draw(20 * time.Second))
				store.Heal()
				store.Wake()
			}
		})
	}
	<-story.Done()
	// What is left of the story may hold an election for a TTL; then somebody leads, as soon as its work begins.
	healed := time.Now()
	for _, e := range elections {
		for {
			if rec, err := s.place.Get(t.Context(), e); err == nil && len(rec.Leader) > 4 && rec.Leader[2:] == ".end" {
				break
			}
			if time.Since(healed) > 3*time.Minute {
				t.Errorf("%s has no leader %v after all was well again", e, time.Since(healed))
				break
			}
			time.Sleep(time.Second) // virtual
		}
	}
	close(calm)
	members.Wait()
	if err := s.verifier.Finish(); err != nil {
		t.Error(err)
	}
	terms, _ = s.verifier.Count()
	return terms
}

// live is one life of a member: it joins, leads until the context ends or it has had enough, hands over now and then, and leaves.
func (s *simulation) live(ctx context.Context, store *drivertest.Faults, id string, elections []string, calm chan struct{}) {
	cfg := s.cfg
	cfg.ID = id
	m, err := tenure.Join(ctx, store, cfg)
	if err != nil {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var leads sync.WaitGroup
	for _, e := range elections {
		leads.Go(func() {
			for ctx.Err() == nil {
				err := m.Lead(ctx, e, s.work)
				if errors.Is(err, tenure.ErrLeft) || errors.Is(err, tenure.ErrStanding) {
					return
				}
			}
		})
	}
	if calm != nil {
		<-calm
	} else {
		for range s.draw(6) {
			time.Sleep(s.draw(20 * time.Second))
			if s.draw(2) == 0 {
				short, cancel := context.WithTimeout(ctx, s.draw(5*time.Second)+1)
				_ = m.Resign(short, elections[s.draw(2)])
				cancel()
			}
		}
	}
	if s.draw(2) == 0 {
		cancel()
	}
	if err := m.Leave(context.Background()); err != nil && calm != nil {
		s.t.Errorf("%s: %v", id, err)
	}
	cancel()
	leads.Wait()
}
