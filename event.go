package tenure

import "time"

// An Event is something that happened to a member. It is one of the types below that have Meta.
type Event interface{ meta() Meta }

// Meta is what all events have.
type Meta struct {
	At       time.Time
	Member   string
	Session  string // the session's ID; empty before one is open
	Election string // empty when the event concerns the whole session
	Token    uint64 // of the term; 0 when there is none
}

func (m Meta) meta() Meta { return m }

// MetaOf returns what all events have.
func MetaOf(e Event) Meta { return e.meta() }

type (
	// SessionOpened says that the store granted a session.
	SessionOpened struct{ Meta }

	// SessionEnded says that the session is over. Reason is ErrLeft when the member left, ErrResigned when it was for one stand only, which is over, else why
	// it was lost; all its terms have ended before.
	SessionEnded struct {
		Meta
		Reason error
	}

	// SessionFailed says that a session could not be opened; it is tried again.
	SessionFailed struct {
		Meta
		Err error
	}

	// Renewed says that a renewal succeeded. Deadline is that of all terms of the session.
	Renewed struct {
		Meta
		Took     time.Duration
		Deadline time.Time
	}

	// RenewFailed says that a renewal failed; unless one succeeds before Deadline, all terms of the session end then.
	RenewFailed struct {
		Meta
		Err      error
		Failures int // in a row
		Deadline time.Time
	}

	// TermStarted says that the member leads. It comes before the work starts.
	TermStarted struct {
		Meta
		Deadline time.Time // unless renewed
		Waited   time.Duration
	}

	// TermEnded says that the term's context was cancelled. It comes once for each TermStarted, after it. Reason is a *LostError, or wraps
	// ErrResigned or ErrLeft.
	TermEnded struct {
		Meta
		Held   time.Duration
		Reason error
	}

	// TermReleased says that the store has freed the election of an ended term, after its work had returned.
	TermReleased struct{ Meta }

	// Overrun says that work still runs although its context was cancelled StopTimeout ago: from now on another leader's work may overlap with it.
	// It comes again, with Returned set, when the work has returned.
	Overrun struct {
		Meta
		For      time.Duration // since the context was cancelled
		Returned bool
	}

	// CampaignFailed says that an attempt to acquire or to wait failed; it is made again.
	CampaignFailed struct {
		Meta
		Err error
	}

	// ReleaseFailed says that an attempt to release failed; it is made again until the lease has lapsed.
	ReleaseFailed struct {
		Meta
		Err error
	}

	// NamesakeSeen says that another live session has this member's ID: another process is configured alike, or this one was restarted
	// and its former session has not lapsed yet.
	NamesakeSeen struct {
		Meta
		Other string // the other session's ID
	}
)
