// Package driver is the seam between the election logic of package tenure and a store.
//
// A program that elects a leader never calls it; who writes a store does. A driver translates to its store's primitives and
// nothing else: deadlines, renewals, retries, backoff, callbacks and step-down exist once, in package tenure. Package
// driver/drivertest holds the suite that every driver must pass.
//
// # Three outcomes
//
// A call that changes the store ends in one of three ways, never two:
//
//   - nil: the effect has taken place.
//   - one of the sentinels below: the effect has definitely not taken place.
//   - any other error: unknown. The effect may have taken place, may yet take place, or may never. The caller asks again;
//     therefore Acquire and Release are idempotent within a session.
//
// A driver never retries by itself. The one exception is a connection that is known dead before anything was sent on it.
//
// # Blocking
//
// Every method but Close of Store and ID, Changed and Info takes a context and returns soon after it ends, with an error that wraps the
// context's. The caller gives every context a deadline except those of Await, Watch and a List. A driver sets no timeouts of its own that are shorter than the context's.
package driver

import (
	"context"
	"errors"
	"iter"
	"time"
)

var (
	// ErrHeld says that another session holds the election. The Record returned beside it says which.
	ErrHeld = errors.New("held by another session")

	// ErrSessionLost says that the store has forgotten the session, or never will renew it again: everything it held is lost.
	// A session that has once returned it returns it for ever.
	ErrSessionLost = errors.New("session lost")

	// ErrInvalid says that a request can never succeed as it was made: a name or value too long for the store, a TTL outside
	// Info's bounds, a schema of another version, a missing permission. It is wrapped in an error that names field, value and
	// remedy, and is the only error that package tenure does not retry while a member joins or a campaign starts.
	ErrInvalid = errors.New("invalid")

	// ErrCorrupt says that a record is not one that this driver, or a client it stands beside, could have written.
	// It is wrapped in an error that names the record. The driver leaves the record as it is.
	ErrCorrupt = errors.New("corrupt record")
)

// A Record is the state of one election at one moment, as the store tells it.
type Record struct {
	Election string
	Leader   string // the holding member's ID; empty when vacant
	Session  string // the holding session's ID; empty when vacant
	Token    uint64 // the fencing token of the current term, or of the last one when vacant; 0 when there never was one, or the store cannot tell
	Value    []byte // what the holder publishes; the receiver may keep it, nobody may change it

	// AcquiredAt and ExpiresAt are by the store's clock and for people to read: nothing may be decided by comparing them with
	// another clock. Zero when vacant or when the store does not know.
	AcquiredAt time.Time
	ExpiresAt  time.Time
}

// Held reports whether a session holds the election.
func (r Record) Held() bool { return r.Session != "" }

// A Bid is what a session offers to acquire.
type Bid struct {
	Election string
	Value    []byte // to publish with the record; the driver does not keep it after the call
	Queue    bool   // when held, take a place in the store's queue of waiters, if it has one
}

// A Grant is what a renewal brought.
type Grant struct {
	// TTL is what the store granted. The caller counts it from before it sent the request.
	TTL time.Duration

	// Holds is nil while the store's view of what the session holds agrees with what its calls have reported. Otherwise it is
	// everything the session holds at the store, by election, with its token: what is missing was deleted or overwritten by
	// somebody else, what is extra was acquired by a call whose answer was lost. It is a snapshot taken between the call of KeepAlive and its return.
	Holds map[string]uint64

	// Asked are elections that the session holds and that somebody asked it to resign (see Asker), with the token they were asked
	// to resign; it is repeated until that term is over.
	Asked map[string]uint64

	// Namesake is the ID of another live session of the same member ID, empty when there is none or the store cannot tell.
	Namesake string
}

// Info is what people and the conformance suite need to know about a store. It does not change while the store is open.
type Info struct {
	Name           string        // the driver's, as in its URL scheme: "postgres"
	MinTTL, MaxTTL time.Duration // inclusive bounds of a session's TTL
	Push           bool          // vacancies and watches are pushed by the store; false: the driver polls
	Queue          bool          // waiters queue at the store; a release wakes only the next in line
	SharedSessions bool          // one session may hold many elections; false: package tenure opens a session per election
	Token          string        // what backs the token: "sequence tenure.token"
	Clock          string        // whose clock decides expiry: "the database's"
	Caveats        []string      // what the store cannot promise, each a sentence for the user
}

// A Store is the strongly consistent place where elections are recorded. All methods may be called concurrently.
type Store interface {
	// Open starts a session for a member. The store forgets it, and frees all it holds, once ttl has passed unrenewed. Two
	// sessions of one member ID are two sessions: they share nothing. ttl counts from before the caller called Open.
	Open(ctx context.Context, member string, ttl time.Duration) (Session, error)

	// Get reads one election's record, linearizably: an answer that a majority or the primary did not confirm is an error. A
	// vacant or unknown election has no holder; its last token stays where the store can tell it.
	Get(ctx context.Context, election string) (Record, error)

	// List yields the records whose election starts with prefix, in the order of their names. An error ends it, except ErrCorrupt, after which it
	// goes on with the next record.
	List(ctx context.Context, prefix string) iter.Seq2[Record, error]

	// Watch yields the current record, then each later state; it may skip intermediate ones, never the last. A change of holder,
	// token or value is a new state; a renewal is not. Expiry is, when it comes and whether or not somebody takes over. An error ends the
	// sequence; the caller watches again. A watch whose connection has died says so within about 15 seconds; it is never silent for ever.
	Watch(ctx context.Context, election string) iter.Seq2[Record, error]

	Info() Info

	// Close frees what the driver itself opened; it is bounded by a few seconds. Sessions still open are left to lapse.
	Close() error
}

// A Session is a member's renewable lease at the store. KeepAlive is called by one goroutine at a time; the other methods may be called
// concurrently for different elections, and for one election one after the other, except that a call whose context has ended may
// still be on its way when the next is made.
type Session interface {
	// ID is unique among all sessions of the store, of all times.
	ID() string

	// KeepAlive renews the session and all it holds. ErrSessionLost: all is lost. It never revives what the store has let go.
	KeepAlive(ctx context.Context) (Grant, error)

	// Acquire tries once, without waiting for others. nil: this session holds the election and Record.Token is its term's, greater than every token
	// that was ever handed out for that election. When the session holds it already, Acquire keeps the term and its token, and publishes the value.
	// ErrHeld: Record says who. ErrSessionLost: the session must hold at the moment the election is taken. ErrCorrupt: the record is none that a driver could
	// have written; it is left as it is.
	Acquire(ctx context.Context, bid Bid) (Record, error)

	// Await returns nil when Acquire is worth trying: the election was vacated, or this session was made its holder, or that may
	// be so, at any time since the last Acquire returned ErrHeld. It may wake for nothing, never sleep through. ErrSessionLost when the session is known to be lost.
	Await(ctx context.Context, election string) error

	// Release gives up the term with this token, and where the store has a queue hands the election to the next in line; token
	// 0: whatever the session holds of the election, and its place in the queue. The driver then finds out first and scopes the write to what it found: a
	// release that takes effect late never touches a later term, nor a later place in the queue. Releasing what is not held is no error.
	Release(ctx context.Context, election string, token uint64) error

	// Close ends the session and frees all it holds, at once. When it fails the session lapses by itself. The session's resources at the client
	// are freed in any case. It may be called while other methods run; they fail soon.
	Close(ctx context.Context) error

	// Changed receives when the next KeepAlive is likely to bring news (a loss, a request to resign): the caller then renews
	// without waiting for its interval. It has a buffer of one, is never closed, and is nil when the store cannot push.
	Changed() <-chan struct{}
}

// A Waker is a Session that can tell of an election without a goroutine that waits in Await: ten thousand waits then cost little.
type Waker interface {
	// Wake returns a channel, with a buffer of one, that receives when Await would return, or nil when only Await can wait now. The channel is good until the next Acquire or Release of the election.
	Wake(election string) <-chan struct{}
}

// An Asker is a Store through which anybody may ask a leader to hand over.
type Asker interface {
	// Ask records that the holder of the term with this token is asked to resign, and where the store can push tells it at once. It has no effect on later
	// terms. ErrNotHeld: that term is over.
	Ask(ctx context.Context, election string, token uint64) error
}

// ErrNotHeld says that the term that a request was scoped to is over, or never was.
var ErrNotHeld = errors.New("not held")
