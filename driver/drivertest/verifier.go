package drivertest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// An EventKind says what happened. The zero value is none of them.
type EventKind int

const (
	_        EventKind = iota
	Started            // a term began: its holder may work, until Deadline
	Renewed            // all terms of Session are trusted until Deadline from now on
	Worked             // the holder did a unit of work, having checked the term at At
	Ended              // the holder stopped to trust the term
	Returned           // the work of an ended term has returned
	Overran            // the work of an ended term has not returned in the time that it has to stop
	Released           // the term was given up at the store, or is about to be
	Robbed             // somebody took the term from its holder behind its back, or revoked all of Session when Election is empty
	Accepted           // the guard of a resource let a write of this term through
	kindsEnd
)

var kindNames = [kindsEnd]string{"?", "started", "renewed", "worked", "ended", "returned", "overran", "released", "robbed", "accepted"}

func (k EventKind) String() string {
	if k <= 0 || k >= kindsEnd {
		return kindNames[0]
	}
	return kindNames[k]
}

// An Event is something that happened to a term, or to all terms of a session when Election is empty. Times of all members come from clocks that agree:
// one process, or one bubble.
type Event struct {
	Kind     EventKind
	At       time.Time
	Member   string // for people
	Session  string
	Election string
	Token    uint64
	Deadline time.Time // of Started and Renewed
}

func (e Event) String() string {
	text := fmt.Sprintf("%s %-8s", e.At.Format("15:04:05.000000"), e.Kind)
	if e.Election != "" {
		text += fmt.Sprintf(" %q token %d", e.Election, e.Token)
	}
	text += fmt.Sprintf(" session %s", e.Session)
	if e.Member != "" {
		text += fmt.Sprintf(" (%s)", e.Member)
	}
	if !e.Deadline.IsZero() {
		text += fmt.Sprintf(" until %s", e.Deadline.Format("15:04:05.000000"))
	}
	return text
}

// A Verifier follows the terms of any number of elections and members while they happen, and finds:
//
//   - two terms with one token, or tokens that do not grow from each term to the next;
//   - two terms of one election that were trusted, or whose work ran, at one time;
//   - a term that went on, or work that was done, after its deadline or its end;
//   - a term without a start, with two starts or two ends, or with work that returned after its release;
//   - a guard that let an older token pass after a newer one.
//
// Events of one member are recorded in their order. Those of different members may come in any order, for what counts is their times. A
// term that was Robbed may overlap with its successors, since its holder cannot know; all else still holds for it.
//
// All methods may be called concurrently. The zero value is ready for use.
type Verifier struct {
	// Tolerance is by how much intervals may overlap and deadlines be overrun, for clocks that do not quite agree, and for what passes
	// between an event and its time. Under virtual time it is 0. It is set before the first event.
	Tolerance time.Duration

	mu        sync.Mutex
	count     int // events recorded
	history   []Event
	elections map[string][]*span        // ordered by token
	live      map[string]map[*span]bool // those that have not ended, by session
	robbed    map[string]bool           // sessions
	early     map[Event]bool            // terms that were robbed before their holder heard of them: election, session and token
	accepted  map[string]Event          // the newest that the guard has let through
	told      map[[2]*span]bool         // pairs that were found at fault
	faults    []fault
}

// A span is a term as far as it has been heard of.
type span struct {
	Event           // Started
	deadline        time.Time
	ended           time.Time // zero: not yet
	returned        time.Time // zero: not yet, or nobody says
	released        time.Time // zero: not yet, or nobody says
	overran, robbed bool
	late            []Event // work after the deadline that was known then
}

// A fault is what was found. One between two terms stands only unless the earlier turns out to be robbed.
type fault struct {
	text    string
	victim  *span
	context []Event
}

const (
	keptHistory  = 10000 // events that are kept to explain what follows
	shownHistory = 40    // events shown with a fault
	shownFaults  = 5
)

// Record takes note of an event.
func (v *Verifier) Record(e Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.elections == nil {
		v.elections = make(map[string][]*span)
		v.live = make(map[string]map[*span]bool)
		v.told = make(map[[2]*span]bool)
		v.robbed = make(map[string]bool)
		v.early = make(map[Event]bool)
		v.accepted = make(map[string]Event)
	}
	v.count++
	if len(v.history) == 2*keptHistory {
		v.history = append(v.history[:0], v.history[keptHistory:]...)
	}
	v.history = append(v.history, e)
	switch e.Kind {
	case Started:
		v.started(e)
		return
	case Renewed:
		for s := range v.live[e.Session] {
			v.renewed(s, e)
		}
		return
	case Accepted:
		if newest := v.accepted[e.Election]; e.Token < newest.Token && !e.At.Before(newest.At) {
			v.fail(e, nil, "the guard accepted token %d after token %d", e.Token, newest.Token)
		} else if e.Token > newest.Token {
			v.accepted[e.Election] = e
		}
		return
	case Robbed:
		if e.Election == "" {
			v.robbed[e.Session] = true
			return
		}
	}
	s := v.find(e)
	if s == nil {
		if e.Kind == Robbed {
			v.early[Event{Election: e.Election, Session: e.Session, Token: e.Token}] = true
		}
		if e.Kind != Robbed && e.Kind != Released { // which may concern a term that its caller never heard of
			v.fail(e, nil, "%s without a start", e.Kind)
		}
		return
	}
	switch e.Kind {
	case Robbed:
		s.robbed = true
	case Worked:
		switch {
		case e.At.Before(s.At.Add(-v.Tolerance)):
			v.fail(e, nil, "work before the start of its term")
		case !s.ended.IsZero() && e.At.After(s.ended.Add(v.Tolerance)):
			v.fail(e, nil, "work %v after the end of its term", e.At.Sub(s.ended))
		case !s.ended.IsZero():
		case e.At.After(s.deadline.Add(v.Tolerance)):
			s.late = append(s.late, e) // the renewal may not have been recorded yet
		}
	case Ended:
		v.ended(s, e)
	case Returned:
		s.returned = e.At
		if !s.released.IsZero() && e.At.After(s.released.Add(v.Tolerance)) {
			v.fail(e, nil, "work returned %v after its term was released", e.At.Sub(s.released))
		}
		v.compareBoth(s)
	case Overran:
		s.overran = true
	case Released:
		s.released = e.At
		if s.ended.IsZero() || s.ended.After(e.At.Add(v.Tolerance)) {
			v.fail(e, nil, "released before its term had ended")
		}
	default:
		v.fail(e, nil, "event of an unknown kind %d", e.Kind)
	}
}

// place returns where in the terms of an election the token is, or belongs.
func place(terms []*span, token uint64) (int, bool) {
	return slices.BinarySearchFunc(terms, token, func(s *span, token uint64) int { return cmp.Compare(s.Token, token) })
}

func (v *Verifier) find(e Event) *span {
	terms := v.elections[e.Election]
	for i, ok := place(terms, e.Token); ok && i < len(terms) && terms[i].Token == e.Token; i++ {
		if terms[i].Session == e.Session {
			return terms[i]
		}
	}
	return nil
}

func (v *Verifier) started(e Event) {
	terms := v.elections[e.Election]
	i, taken := place(terms, e.Token)
	if e.Token == 0 {
		v.fail(e, nil, "a term without a token")
	}
	if taken {
		v.fail(e, nil, "token %d was given to session %s before, at %s", e.Token, terms[i].Session, terms[i].At.Format("15:04:05.000000"))
		if v.find(e) != nil {
			return
		}
	}
	if e.Deadline.IsZero() {
		v.fail(e, nil, "a term without a deadline")
	}
	s := &span{Event: e, deadline: e.Deadline, robbed: v.early[Event{Election: e.Election, Session: e.Session, Token: e.Token}]}
	v.elections[e.Election] = slices.Insert(terms, i, s)
	if v.live[e.Session] == nil {
		v.live[e.Session] = make(map[*span]bool)
	}
	v.live[e.Session][s] = true
	v.compareBoth(s)
}

// renewed moves the deadline of a term. Work that was recorded before, and after the former deadline, was right only if this is what it relied on.
func (v *Verifier) renewed(s *span, e Event) {
	s.late = slices.DeleteFunc(s.late, func(work Event) bool {
		if work.At.Add(v.Tolerance).Before(e.At) {
			v.fail(work, nil, "work %v after the deadline of its term, before the next renewal", work.At.Sub(s.deadline))
			return true
		}
		return !work.At.After(e.Deadline.Add(v.Tolerance))
	})
	s.deadline = e.Deadline
}

func (v *Verifier) ended(s *span, e Event) {
	if !s.ended.IsZero() {
		v.fail(e, nil, "ended twice")
		return
	}
	s.ended = e.At
	if s.ended.Before(s.At) {
		v.fail(e, nil, "ended before it started")
	}
	if late := e.At.Sub(s.deadline); late > v.Tolerance {
		v.fail(e, nil, "ended %v after its deadline", late)
	}
	for _, work := range s.late {
		v.fail(work, nil, "work %v after the deadline of its term", work.At.Sub(s.deadline))
	}
	s.late = nil
	delete(v.live[e.Session], s)
	if len(v.live[e.Session]) == 0 {
		delete(v.live, e.Session)
	}
	v.compareBoth(s)
}

// until returns how long a term was trusted, or its work ran; unknown is true while that can still change.
func (s *span) until() (end time.Time, unknown bool) {
	switch {
	case s.ended.IsZero():
		return s.deadline, true
	case s.returned.After(s.ended) && !s.overran:
		return s.returned, false
	}
	return s.ended, false
}

// compareBoth compares a term with its neighbours.
func (v *Verifier) compareBoth(s *span) {
	terms := v.elections[s.Election]
	i := slices.Index(terms, s)
	if i > 0 {
		v.compare(terms[i-1], s, false)
	}
	if i+1 < len(terms) {
		v.compare(s, terms[i+1], false)
	}
}

// compare finds two terms in the wrong order or at one time. What is unknown is left for later, unless the history is complete.
func (v *Verifier) compare(a, b *span, complete bool) {
	if v.told[[2]*span{a, b}] {
		return
	}
	end, unknown := a.until()
	faults := len(v.faults)
	defer func() { v.told[[2]*span{a, b}] = len(v.faults) > faults }()
	switch {
	case a.At.After(b.At.Add(v.Tolerance)):
		v.fail(b.Event, a, "token %d started at %s, before token %d at %s", b.Token, b.At.Format("15:04:05.000000"), a.Token, a.At.Format("15:04:05.000000"))
	case unknown && !complete:
	case end.After(b.At.Add(v.Tolerance)):
		what := "trusted or at work"
		if unknown {
			what = "never said to have ended, and trusted"
		}
		v.fail(b.Event, a, "token %d started at %s, while token %d (session %s) was %s until %s, %v longer", b.Token, b.At.Format("15:04:05.000000"),
			a.Token, a.Session, what, end.Format("15:04:05.000000"), end.Sub(b.At))
	}
}

func (v *Verifier) fail(e Event, victim *span, format string, args ...any) {
	if len(v.faults) >= 1000 {
		return // the first of them tell enough
	}
	f := fault{victim: victim, text: fmt.Sprintf("election %q, token %d, session %s: ", e.Election, e.Token, e.Session) + fmt.Sprintf(format, args...)}
	for _, past := range slices.Backward(v.history) {
		if past.Election == e.Election || past.Election == "" && (past.Session == e.Session || victim != nil && past.Session == victim.Session) {
			if f.context = append(f.context, past); len(f.context) == shownHistory {
				break
			}
		}
	}
	slices.Reverse(f.context)
	v.faults = append(v.faults, f)
}

// Err returns an error that tells what was found so far, with the history around it, or nil.
func (v *Verifier) Err() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.err()
}

func (v *Verifier) err() error {
	var errs []error
	more := 0
	for _, f := range v.faults {
		if f.victim != nil && (f.victim.robbed || v.robbed[f.victim.Session]) {
			continue
		}
		if len(errs) == shownFaults {
			more++
			continue
		}
		text := f.text
		for _, e := range f.context {
			text += "\n\t" + e.String()
		}
		errs = append(errs, errors.New(text))
	}
	if more > 0 {
		errs = append(errs, fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

// Finish is Err after the last event: now every term must have ended, no later than its deadline.
func (v *Verifier) Finish() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, terms := range v.elections {
		for i, s := range terms {
			if s.ended.IsZero() {
				v.fail(s.Event, nil, "never ended")
				if i+1 < len(terms) {
					v.compare(s, terms[i+1], true)
				}
			}
		}
	}
	return v.err()
}

// Count returns how many terms were started and how many events recorded: a verifier that saw nothing has verified nothing.
func (v *Verifier) Count() (terms, events int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, t := range v.elections {
		terms += len(t)
	}
	return terms, v.count
}
