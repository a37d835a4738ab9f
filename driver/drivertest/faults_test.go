package drivertest_test

import (
	"context"
	"errors"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/driver/drivertest"
	"github.com/gotenure/tenure/store/memory"
)

// scene is a store in memory, and a faulty way to it with one session.
type scene struct {
	t      *testing.T
	ctx    context.Context
	truth  *memory.Store
	faults *drivertest.Faults
	s      driver.Session
	next   atomic.Pointer[drivertest.Fault] // what happens to the next call; nothing happens to later ones
}

// onStage runs f in a bubble.
func onStage(t *testing.T, f func(*scene)) {
	synctest.Test(t, func(t *testing.T) {
		sc := &scene{t: t, ctx: t.Context(), truth: memory.New()}
		sc.faults = drivertest.NewFaults(sc.truth.Share(), func(drivertest.Call) drivertest.Fault {
			if fault := sc.next.Swap(nil); fault != nil {
				return *fault
			}
			return drivertest.Fault{}
		})
		defer sc.truth.Close()
		defer sc.faults.Close()
		s, err := sc.faults.Open(sc.ctx, "m", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		sc.s = s
		f(sc)
	})
}

func (sc *scene) acquire(fault drivertest.Fault) (driver.Record, error) {
	sc.next.Store(&fault)
	return sc.s.Acquire(sc.ctx, driver.Bid{Election: "e"})
}

func (sc *scene) held() driver.Record {
	r, err := sc.truth.Get(sc.ctx, "e")
	if err != nil {
		sc.t.Fatal(err)
	}
	return r
}

func TestFaultKinds(t *testing.T) {
	const second = time.Second
	for _, c := range []struct {
		name      string
		fault     drivertest.Fault
		wantErr   error
		wantTook  time.Duration
		wantHeld  bool // when the call returns
		wantLater bool // a minute later
	}{
		{name: "nothing", wantHeld: true, wantLater: true},
		{name: "before", fault: drivertest.Fault{Before: 2 * second}, wantTook: 2 * second, wantHeld: true, wantLater: true},
		{name: "after", fault: drivertest.Fault{After: 3 * second}, wantTook: 3 * second, wantHeld: true, wantLater: true},
		{name: "request lost", fault: drivertest.Fault{Before: second, Lose: drivertest.Request}, wantErr: drivertest.ErrInjected, wantTook: second},
		{name: "answer lost", fault: drivertest.Fault{Lose: drivertest.Answer, Err: context.Canceled}, wantErr: context.Canceled, wantHeld: true, wantLater: true},
		{name: "late", fault: drivertest.Fault{Lose: drivertest.Request, Twice: true, Again: 4 * second}, wantErr: drivertest.ErrInjected, wantLater: true},
		{name: "hang", fault: drivertest.Fault{Hang: true}, wantErr: context.DeadlineExceeded, wantTook: 10 * second, wantHeld: true, wantLater: true},
		{name: "hang and lose", fault: drivertest.Fault{Hang: true, Lose: drivertest.Request}, wantErr: context.DeadlineExceeded, wantTook: 10 * second},
		{name: "arrives when the caller has given up", fault: drivertest.Fault{Before: 20 * second}, wantErr: context.DeadlineExceeded, wantTook: 10 * second, wantLater: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			onStage(t, func(sc *scene) {
				outside := sc.ctx
				ctx, cancel := context.WithTimeout(outside, 10*second)
				defer cancel()
				sc.ctx = ctx
				start := time.Now()
				_, err := sc.acquire(c.fault)
				if !errors.Is(err, c.wantErr) {
					t.Errorf("error %v; want %v", err, c.wantErr)
				}
				if took := time.Since(start); took != c.wantTook {
					t.Errorf("took %v; want %v", took, c.wantTook)
				}
				sc.ctx = outside
				if held := sc.held().Held(); held != c.wantHeld {
					t.Errorf("held is %t when the call returns", held)
				}
				time.Sleep(time.Minute) // virtual
				if held := sc.held().Held(); held != c.wantLater {
					t.Errorf("held is %t a minute later", held)
				}
			})
		})
	}
}

func TestFaultTwice(t *testing.T) {
	onStage(t, func(sc *scene) {
		first, err := sc.acquire(drivertest.Fault{Twice: true, Again: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if err := sc.s.Release(sc.ctx, "e", first.Token); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // virtual
		if r := sc.held(); r.Token <= first.Token || r.Session != sc.s.ID() {
			t.Errorf("the duplicate of an acquire came after the release and left %+v; want another term", r)
		}
	})
}

func TestFaultDeaf(t *testing.T) {
	for _, wake := range []string{"Wake", "Close"} {
		t.Run(wake, func(t *testing.T) {
			onStage(t, func(sc *scene) {
				ctx, cancel := context.WithTimeout(sc.ctx, time.Second)
				defer cancel()
				returned := make(chan time.Time, 1)
				go func() {
					_, _ = sc.s.Acquire(ctx, driver.Bid{Election: "f"})
					sc.next.Store(&drivertest.Fault{Deaf: true})
					_, _ = sc.s.KeepAlive(ctx)
					returned <- time.Now()
				}()
				start := time.Now()
				time.Sleep(time.Minute) // virtual
				if wake == "Wake" {
					sc.faults.Wake()
				} else {
					sc.faults.Close()
				}
				if took := (<-returned).Sub(start); took != time.Minute {
					t.Errorf("a call that ignores its context returned after %v", took)
				}
			})
		})
	}
}

func TestFaultAct(t *testing.T) {
	onStage(t, func(sc *scene) {
		first, err := sc.acquire(drivertest.Fault{})
		if err != nil {
			t.Fatal(err)
		}
		sc.next.Store(&drivertest.Fault{Act: func() { sc.truth.DeleteRecord("e") }})
		grant, err := sc.s.KeepAlive(sc.ctx)
		if err != nil || grant.Holds == nil || len(grant.Holds) > 0 {
			t.Errorf("the record was deleted before the renewal arrived: %+v, %v", grant, err)
		}
		second, err := sc.acquire(drivertest.Fault{})
		if err != nil || second.Token <= first.Token {
			t.Errorf("token %d after %d: %v", second.Token, first.Token, err)
		}
		sc.next.Store(&drivertest.Fault{Act: func() { sc.truth.DropSession(sc.s.ID()) }})
		if _, err := sc.s.KeepAlive(sc.ctx); !errors.Is(err, driver.ErrSessionLost) {
			t.Errorf("the session was dropped before the renewal arrived: %v", err)
		}
	})
}

func TestFaultCut(t *testing.T) {
	onStage(t, func(sc *scene) {
		other, err := sc.truth.Open(sc.ctx, "other", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		held, err := other.Acquire(sc.ctx, driver.Bid{Election: "e"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sc.acquire(drivertest.Fault{}); !errors.Is(err, driver.ErrHeld) {
			t.Fatal(err)
		}
		awaited, watched := make(chan time.Time, 1), make(chan error, 1)
		go func() {
			if err := sc.s.Await(sc.ctx, "e"); err != nil {
				t.Errorf("Await: %v", err)
			}
			awaited <- time.Now()
		}()
		go func() {
			for _, err := range sc.faults.Watch(sc.ctx, "e") {
				if err != nil {
					watched <- err
				}
			}
		}()
		synctest.Wait()

		boom := errors.New("boom")
		sc.faults.Cut(boom)
		if err := <-watched; !errors.Is(err, boom) {
			t.Errorf("the watch ended with %v", err)
		}
		if _, err := sc.s.KeepAlive(sc.ctx); !errors.Is(err, boom) {
			t.Errorf("KeepAlive: %v", err)
		}
		if _, err := sc.faults.Get(sc.ctx, "e"); !errors.Is(err, boom) {
			t.Errorf("Get: %v", err)
		}
		sc.faults.Cut(nil)
		ctx, cancel := context.WithTimeout(sc.ctx, time.Second)
		defer cancel()
		start := time.Now()
		if err := sc.s.Release(ctx, "e", 0); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("Release after %v: %v", time.Since(start), err)
		}
		if err := other.Release(sc.ctx, "e", held.Token); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // virtual
		heal := time.Now()
		sc.faults.Heal()
		if at := <-awaited; !at.Equal(heal) {
			t.Errorf("Await returned %v after the cut was healed", at.Sub(heal))
		}
		if _, err := sc.s.KeepAlive(sc.ctx); err != nil {
			t.Errorf("KeepAlive after Heal: %v", err)
		}

		// A request that is under way when the store is cut off arrives, and its answer does not.
		time.AfterFunc(time.Second, func() { sc.faults.Cut(nil) })
		sc.next.Store(&drivertest.Fault{Before: 2 * time.Second})
		slow, cancel := context.WithTimeout(sc.ctx, 5*time.Second)
		defer cancel()
		if _, err := sc.s.Acquire(slow, driver.Bid{Election: "f"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an acquire whose answer was cut off: %v", err)
		}
		if r, err := sc.truth.Get(sc.ctx, "f"); err != nil || r.Session != sc.s.ID() {
			t.Errorf("%+v, %v; want it held", r, err)
		}
	})
}

func TestFaultEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		truth := memory.New()
		faults := drivertest.NewFaults(truth.Share(), func(call drivertest.Call) drivertest.Fault {
			if call.Method != "Event" {
				return drivertest.Fault{}
			}
			return map[int]drivertest.Fault{
				1: {Twice: true},
				2: {Stale: true},
				3: {Lose: drivertest.Request},
				4: {Before: time.Second},
				5: {Lose: drivertest.Answer},
			}[call.Number]
		})
		defer truth.Close()
		defer faults.Close()
		s, err := truth.Open(t.Context(), "m", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		var last error
		done := make(chan struct{})
		go func() {
			defer close(done)
			for r, err := range faults.Watch(t.Context(), "e") {
				if last = err; err == nil {
					got = append(got, string(r.Value))
				}
			}
		}()
		for _, value := range []string{"1", "2", "3", "4", "5"} {
			synctest.Wait()
			if _, err := s.Acquire(t.Context(), driver.Bid{Election: "e", Value: []byte(value)}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second) // virtual
		}
		<-done
		if want := []string{"", "1", "1", "2", "1", "2", "4"}; !reflect.DeepEqual(got, want) {
			t.Errorf("the watch yielded %q; want %q", got, want)
		}
		if !errors.Is(last, drivertest.ErrInjected) {
			t.Errorf("the watch ended with %v", last)
		}
		if n := faults.Count("Event"); n != 6 {
			t.Errorf("%d events", n)
		}
	})
}

func TestChaosIsDeterministic(t *testing.T) {
	chaos := drivertest.Chaos{Seed: 7, Rate: 0.5, Delay: time.Second, Hang: true, Deaf: true}
	same, other := chaos.Script(), drivertest.Chaos{Seed: 8, Rate: 0.5, Delay: time.Second, Hang: true, Deaf: true}.Script()
	disturbed, differs := 0, 0
	const n = 2000
	for i := range n {
		call := drivertest.Call{Method: "Acquire", Member: "m", Election: "e", Number: i}
		one, two := chaos.Script()(call), same(call)
		if !reflect.DeepEqual(one, two) {
			t.Fatalf("call %d: %+v and %+v from one seed", i, one, two)
		}
		if !reflect.DeepEqual(one, drivertest.Fault{}) {
			disturbed++
		}
		if !reflect.DeepEqual(one, other(call)) {
			differs++
		}
		if one.Before > time.Second || one.After > time.Second || one.Again > time.Second {
			t.Errorf("call %d: a delay exceeds the longest: %+v", i, one)
		}
	}
	if disturbed < n/3 || disturbed > n*2/3 || differs < n/3 {
		t.Errorf("%d of %d calls are disturbed, %d differ from another seed's", disturbed, n, differs)
	}
}
