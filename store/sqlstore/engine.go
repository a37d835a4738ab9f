package sqlstore

import (
	"context"
	"errors"
	"time"
)

// An Engine runs scripts on one database. Its methods may be called concurrently.
//
// An error is either unknown (anything), or says that nothing was changed: it wraps driver.ErrInvalid when the script can never succeed (a
// missing privilege), or ErrNoTables. An engine that cannot tell whether a script was committed returns any other error.
type Engine interface {
	// Run runs the statements one after the other in one transaction, and commits. The answer has the rows of each statement. Unless the
	// script is ReadOnly each statement sees what was committed before it began, as in PostgreSQL's READ COMMITTED,
	// or the whole script excludes other writers, as SQLite's BEGIN IMMEDIATE.
	//
	// It returns soon after the context has ended, and does not retry, except on another connection when nothing was sent.
	Run(ctx context.Context, script Script) ([][]Row, error)

	// Close frees what the engine opened. It is bounded by a few seconds.
	Close() error
}

// A Script is a straight line of statements for one transaction. No statement depends on the answer to an earlier one: each is
// conditioned on what the tables say. So a script can go to the server in one round trip.
type Script struct {
	Name     string        // what it is for, in errors: "acquire"
	ReadOnly bool          // it changes nothing and locks nothing, and needs no transaction when it has one statement
	Urgent   bool          // a renewal: it must not wait for a connection behind others
	Lease    time.Duration // that of the session that the script opens or renews: once it was committed, its member relies on it for so long at most
	Stmts    []Stmt
}

// A Stmt is a statement with its arguments, which are of type string, int64 or []byte. Texts are few and constant, so that engines may prepare them.
type Stmt struct {
	SQL  string
	Args []any
}

// A Row holds a row's columns: nil, integers of any size, string or []byte.
type Row []any

// ErrNoTables is what an engine's error wraps when a script failed because the schema's tables do not exist (any more). Nothing was changed.
var ErrNoTables = errors.New("tables do not exist")

// A Changer is an Engine that can tell cheaply whether anybody has changed the database: SQLite's PRAGMA data_version.
type Changer interface {
	// Version returns a number that differs from the last one when anybody, this process included, has committed a change since. It is called by one
	// goroutine at a time, every Poll of the Dialect while something waits.
	Version(ctx context.Context) (int64, error)
}

// A Dialect is how a database differs from others. It does not change after it was given to New.
//
// The statements are in the SQL that PostgreSQL 12 and SQLite 3.39 have in common (common table expressions, UPDATE FROM, RETURNING, ON
// CONFLICT, window functions), with parameters written $1, $2, … and names in braces that the dialect fills in.
type Dialect struct {
	Name string // as in driver.Info

	// Table returns a table's name as it stands in statements, given meta, sessions, elections, waiters: "tenure_sessions".
	Table func(name string) string

	// Parameter returns the n-th parameter of a statement, from 1: "?1". Nil: $1.
	Parameter func(n int) string

	// Now is an expression of the database's clock in microseconds since the epoch, at the start of the statement.
	Now string

	// Token returns an expression that draws a token, greater than any drawn before. It is evaluated once for each row that a statement
	// changes, whose rank is an expression: 1, or the row's number among those that the statement changes.
	Token func(rank string) string

	// Greatest is the function that returns the greatest of its arguments: greatest, or max in SQLite.
	Greatest string

	// AfterToken is a statement to run after each statement that may have drawn tokens, empty for none. It counts up a table that
	// Token reads: UPDATE tenure_token SET last = last + changes().
	AfterToken string

	// RowLocks says that the database has writers side by side, and FOR UPDATE, FOR KEY SHARE and SKIP LOCKED. Else one script at a time writes.
	RowLocks bool

	// Gate is a condition that is true and that queues up, in order, behind what package fence has open for the election's current term. Row locks
	// do not: those that can be shared overtake the others. Nil: there is nothing to queue behind.
	Gate func(election string) string

	// Notify is an expression that sends notifications when the transaction commits. What is Given or Asked concerns the process that opened the session, which its ID tells (see Options.Prefix);
	// what is Given or Taken concerns those who watch. Its value is of no account. Nil: the database cannot push. A database with Notify has data-modifying
	// common table expressions: WITH changed AS (UPDATE … RETURNING …) SELECT ….
	Notify func(kind Kind, change Change) string

	// Untied is a condition that what s.bound names is gone, for Options.Bound. Empty: sessions are not bound.
	Untied string

	// Poll is how often to look for changes while something waits and the database does not push: every Poll when the Engine is a Changer, else every Poll
	// with jitter, by a query. 0: 1 s.
	Poll time.Duration

	// OpenCheck are statements that a session's opening runs first; one that fails, fails the opening. For checks of privileges.
	OpenCheck []string

	// The rest is for Tables.
	Text   string // type of a text that compares by its bytes: text COLLATE "C"
	Bytes  string // type of a string of bytes
	Serial string // type and constraint of a primary key that counts up by itself and never uses a number again
	Suffix string // what follows a table's closing parenthesis: STRICT
}

// A Kind says what a notification is about.
type Kind byte

const (
	Taken Kind = 't' // a session has taken the election, or published a value
	Given Kind = 'g' // the election was handed to a session that waits, or has become vacant
	Asked Kind = 'a' // the holder is asked to resign
)

// A Change names the expressions of what a notification tells. Session is null when the election is vacant; Nonce is 0 unless it was given to a place in the queue.
type Change struct {
	Election, Session, Token, AcquiredAt, Nonce string
}

// An Event is what an engine heard by notification.
type Event struct {
	Kind     Kind
	Election string
	Session  string // the holder's, empty when vacant
	Token    uint64

	// AcquiredAt and Nonce are for the process that the election was given to. Anybody may send a notification, but only who may read the queue knows the
	// nonce of a place in it, which is used once: with it the event proves that the transfer was committed.
	AcquiredAt int64 // µs since the epoch
	Nonce      int64
}
