package tenure

import (
	"errors"
	"fmt"
	"time"

	"github.com/gotenure/tenure/driver"
)

var (
	// ErrHeld says that another session holds the election; see [HeldError].
	ErrHeld = driver.ErrHeld

	// ErrLost says that a term ended although nobody on this side wanted it to; see [LostError].
	ErrLost = errors.New("lost leadership")

	// ErrResigned says that a term ended because it was given up: by Resign, or because somebody asked for it.
	ErrResigned = errors.New("resigned")

	// ErrLeft says that the member has left.
	ErrLeft = errors.New("member has left")

	// ErrStanding says that the member stands in, or leads, that election already. One member stands at most once in an election;
	// for a second candidate join a second member.
	ErrStanding = errors.New("this member stands in the election already")

	// ErrNotLeading says that the member does not lead the election that it was to resign.
	ErrNotLeading = errors.New("this member does not lead the election")
)

// A LostError is why a term ended against the will of its holder. errors.Is(err, ErrLost) is true for it.
type LostError struct {
	Election string
	Token    uint64
	Held     time.Duration // from the term's start to its end
	Failures int           // renewals that failed since the last one that succeeded
	Reason   error         // the last failure when Failures > 0, else what the store said
}

func (e *LostError) Error() string {
	held := e.Held.Round(time.Millisecond)
	if held >= time.Minute {
		held = held.Round(time.Second)
	}
	switch {
	case e.Failures == 1:
		return fmt.Sprintf("lost leadership of %s after %v: 1 renewal failed: %v", e.Election, held, e.Reason)
	case e.Failures > 1:
		return fmt.Sprintf("lost leadership of %s after %v: %d renewals failed, last: %v", e.Election, held, e.Failures, e.Reason)
	}
	return fmt.Sprintf("lost leadership of %s after %v: %v", e.Election, held, e.Reason)
}

// Is makes errors.Is(err, ErrLost) true.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Unwrap returns the reason.
func (e *LostError) Unwrap() error { return e.Reason }

// A HeldError is what TryCampaign returns when somebody else leads. errors.Is(err, ErrHeld) is true for it.
type HeldError struct {
	Leadership Leadership // who leads, as the store said when it refused
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("%s is led by %s (session %s, token %d)", e.Leadership.Election, e.Leadership.Leader, e.Leadership.Session, e.Leadership.Token)
}

// Is makes errors.Is(err, ErrHeld) true.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// Reasons of a LostError that the store did not give.
var (
	errLapsed    = errors.New("the lease ran out before a renewal was confirmed")
	errOverwrote = errors.New("somebody deleted or overwrote its record in the store")
)
