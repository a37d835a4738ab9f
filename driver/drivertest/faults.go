package drivertest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/gotenure/tenure/driver"
)

// ErrInjected is what a call returns whose request or answer was lost on purpose, unless its Fault has another error. It is none of the
// driver's sentinels: the outcome is unknown.
var ErrInjected = errors.New("injected fault")

// A Call is one that Faults is about to make.
type Call struct {
	// Method is the name of the method: Open, Get, List, Watch, Ask, KeepAlive, Acquire, Await, Release or Close, which is the session's. It is
	// Event for each state that a watch is about to yield.
	Method   string
	Member   string // of the session; empty where there is none
	Session  string // its ID; empty where there is none, and of Open
	Election string // empty where there is none; List: the prefix
	Token    uint64 // of Release and Ask; Event: of the state
	Number   int    // of such calls, with this method, member and election, that came before
}

// A Loss says what of a call does not arrive.
type Loss int

// What of a call is lost.
const (
	Nothing Loss = iota
	Request      // no effect, an error
	Answer       // the effect, and an error
)

// A Fault is what happens to a call. The zero value leaves it alone. Parts can be combined: a request that is delayed for longer than its
// caller's context lasts takes effect after the caller has given up.
type Fault struct {
	Before time.Duration // until the request takes effect
	After  time.Duration // from the effect until the answer, or the error, is there
	Lose   Loss
	Err    error // instead of ErrInjected, of what is lost
	Hang   bool  // no answer and no error comes; the call returns when its context has ended
	Deaf   bool  // like Hang, and the call does not heed its context either: it returns after Faults.Wake or Close

	// Twice makes the request take effect a second time, Again after the first; when the Request is lost, it is only this one that takes effect,
	// after its caller was told of the error. Of an Event: the state is yielded twice.
	Twice bool
	Again time.Duration

	// Stale is for an Event: after it, the state before comes once more, and then the Event again.
	Stale bool

	// Act is called just before the request takes effect, or would have: an operator who deletes the record, for instance.
	Act func()
}

// plain reports whether the fault leaves the call alone.
func (f Fault) plain() bool {
	return f.Before <= 0 && f.After <= 0 && f.Lose == Nothing && !f.Hang && !f.Deaf && !f.Twice && !f.Stale && f.Act == nil
}

func (f Fault) err() error {
	if f.Err != nil {
		return f.Err
	}
	return ErrInjected
}

// Faults is a driver.Store around another, as it looks from a process whose network does what a script says. Its only clock is package time, so
// it works in a testing/synctest bubble. It is a driver.Asker; without one below, Ask returns an error that wraps errors.ErrUnsupported.
//
// What Session.Changed receives is passed on whatever happens to the calls.
type Faults struct {
	store  driver.Store
	script func(Call) Fault
	ctx    context.Context // of requests whose callers may have given up; ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // requests under way

	mu     sync.Mutex
	closed bool
	wake   chan struct{}   // closed and replaced by Wake
	cut    context.Context // ends with Cut
	sever  context.CancelFunc
	healed chan struct{} // closed by Heal; nil while not cut
	cutErr error
	seen   map[Call]int // Number of the next call like this, with Session, Token and Number zero
	counts map[string]int
}

var (
	_ driver.Store = (*Faults)(nil)
	_ driver.Asker = (*Faults)(nil)
)

// NewFaults returns a store around another. The script is asked for each call, from the goroutine that makes it; nil leaves all calls alone.
// Close closes the store below.
func NewFaults(store driver.Store, script func(Call) Fault) *Faults {
	f := &Faults{store: store, script: script, wake: make(chan struct{}), seen: make(map[Call]int), counts: make(map[string]int)}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.cut, f.sever = context.WithCancel(context.Background())
	return f
}

// Cut cuts the store off. With an error, every call returns it at once and has no effect. With nil there is silence: calls return when their
// contexts have ended, and answers to requests that are delayed at the moment are lost. Watches end with an error; a wait goes on, and hears nothing.
func (f *Faults) Cut(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cutErr = err
	if f.healed == nil {
		f.healed = make(chan struct{})
		f.sever()
	}
}

// Heal undoes Cut. What was lost stays lost.
func (f *Faults) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.healed != nil {
		close(f.healed)
		f.healed = nil
		f.cut, f.sever = context.WithCancel(context.Background())
	}
}

// Wake makes the calls that are Deaf at present return.
func (f *Faults) Wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.wake)
	f.wake = make(chan struct{})
}

// Count returns how often a method was called; see Call.Method.
func (f *Faults) Count(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[method]
}

// Close loses what is under way, wakes what is deaf, and closes the store below.
func (f *Faults) Close() error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.cancel()
	f.Wake()
	err := f.store.Close()
	f.wg.Wait()
	return err
}

// begin counts a call and finds out what happens to it.
func (f *Faults) begin(call Call) Fault {
	like := call
	like.Session, like.Token = "", 0
	f.mu.Lock()
	call.Number = f.seen[like]
	f.seen[like]++
	f.counts[call.Method]++
	f.mu.Unlock()
	if f.script == nil {
		return Fault{}
	}
	return f.script(call)
}

// start registers a request that may outlive its caller, unless the store is closed.
func (f *Faults) start() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.wg.Add(1)
	return true
}

// severed returns a context that ends when the store is cut off; and while it is cut off, a channel for when that ends, and the error of calls.
func (f *Faults) severed() (cut context.Context, healed <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cut, f.healed, f.cutErr
}

// deafen waits until the deaf are woken.
func (f *Faults) deafen() {
	f.mu.Lock()
	wake := f.wake
	f.mu.Unlock()
	select {
	case <-wake:
	case <-f.ctx.Done():
	}
}

// silence waits until the caller gives up, and returns what the caller then says.
func (f *Faults) silence(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ended(ctx)
	case <-f.ctx.Done():
		return errClosed
	}
}

var errClosed = errors.New("store is closed")

func ended(ctx context.Context) error { return fmt.Errorf("call given up: %w", ctx.Err()) }

// sleep reports whether d has passed before the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// do makes a call that may have an effect. Its request travels by itself: the caller may give up before it arrives.
func do[T any](ctx context.Context, f *Faults, call Call, effect func(context.Context) (T, error)) (T, error) {
	var zero T
	fault := f.begin(call)
	cut, healed, cutErr := f.severed()
	switch {
	case ctx.Err() != nil || fault.plain() && healed == nil:
		return effect(ctx)
	case healed != nil && cutErr != nil:
		return zero, cutErr
	case healed != nil:
		return zero, f.silence(ctx)
	case !f.start():
		return effect(ctx) // which knows what to say when the store is closed
	}
	type answer struct {
		v   T
		err error
	}
	arrived := make(chan answer, 1)
	travel := detached{ctx, f.ctx}
	go func() {
		defer f.wg.Done()
		if !sleep(travel, fault.Before) {
			return
		}
		if fault.Act != nil {
			fault.Act()
		}
		a := answer{err: fault.err()}
		if fault.Lose != Request {
			if a.v, a.err = effect(travel); fault.Lose == Answer {
				a = answer{err: fault.err()}
			}
		}
		if fault.Twice {
			f.wg.Go(func() {
				if sleep(travel, fault.Again) {
					_, _ = effect(travel)
				}
			})
		}
		if sleep(travel, fault.After) && !fault.Hang && !fault.Deaf {
			arrived <- a
		}
	}()
	if fault.Deaf {
		f.deafen()
		return zero, fault.err()
	}
	select {
	case a := <-arrived:
		return a.v, a.err
	case <-cut.Done():
		if _, _, err := f.severed(); err != nil {
			return zero, err
		}
		return zero, f.silence(ctx)
	case <-ctx.Done():
		return zero, ended(ctx)
	case <-f.ctx.Done():
		return zero, errClosed
	}
}

// read makes a call that has no effect: it ends with its context wherever it is.
func read(ctx context.Context, f *Faults, call Call) error {
	fault := f.begin(call)
	if ctx.Err() != nil {
		return nil // the store below knows what to say
	}
	_, healed, cutErr := f.severed()
	switch {
	case healed != nil && cutErr != nil:
		return cutErr
	case healed != nil:
		return f.silence(ctx)
	case fault.Deaf:
		f.deafen()
		return fault.err()
	}
	delayed, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.ctx, cancel)()
	if !sleep(delayed, fault.Before+fault.After) {
		return f.silence(ctx) // which is over: one of the two has ended
	}
	if fault.Act != nil {
		fault.Act()
	}
	switch {
	case fault.Hang:
		return f.silence(ctx)
	case fault.Lose != Nothing:
		return fault.err()
	}
	return nil
}

// detached has the values of one context and ends with another.
type detached struct {
	values context.Context
	context.Context
}

func (d detached) Value(key any) any {
	if v := d.Context.Value(key); v != nil {
		return v // which package context needs to know its own
	}
	return d.values.Value(key)
}

// Info returns what the store below says.
func (f *Faults) Info() driver.Info { return f.store.Info() }

// Open starts a session. When its answer is lost, the session is left to lapse.
func (f *Faults) Open(ctx context.Context, member string, ttl time.Duration) (driver.Session, error) {
	s, err := do(ctx, f, Call{Method: "Open", Member: member}, func(ctx context.Context) (driver.Session, error) {
		return f.store.Open(ctx, member, ttl)
	})
	if err != nil {
		return nil, err
	}
	return &faultySession{f: f, s: s, member: member, renewing: make(chan struct{}, 1)}, nil
}

// Ask asks through the store below.
func (f *Faults) Ask(ctx context.Context, election string, token uint64) error {
	asker, ok := f.store.(driver.Asker)
	if !ok {
		return fmt.Errorf("ask the leader of %q to resign: %w", election, errors.ErrUnsupported)
	}
	_, err := do(ctx, f, Call{Method: "Ask", Election: election, Token: token}, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, asker.Ask(ctx, election, token)
	})
	return err
}

// Get reads one record.
func (f *Faults) Get(ctx context.Context, election string) (driver.Record, error) {
	if err := read(ctx, f, Call{Method: "Get", Election: election}); err != nil {
		return driver.Record{}, err
	}
	return f.store.Get(ctx, election)
}

// List lists records; a fault comes before the first.
func (f *Faults) List(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		if err := read(ctx, f, Call{Method: "List", Election: prefix}); err != nil {
			yield(driver.Record{}, err)
			return
		}
		f.store.List(ctx, prefix)(yield)
	}
}
