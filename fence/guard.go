package fence

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/gotenure/tenure/driver"
)

// A Dialect names the kind of database.
type Dialect string

// The dialects.
const (
	Postgres Dialect = "postgres" // 12 and newer
	SQLite   Dialect = "sqlite"   // 3.24 and newer
)

// Config configures a Guard. Only Dialect has no default.
type Config struct {
	Dialect Dialect

	// Namespace is where the tables are: the schema on PostgreSQL, what the tables' names start with (and an underscore) on SQLite.
	// Default "tenure", which is also the default of the stores.
	Namespace string

	// IdleTimeout is for how long a transaction may be idle after a check before the server ends it together with its connection
	// (PostgreSQL's idle_in_transaction_session_timeout, set for that transaction unless it is already shorter). It
	// bounds how long a leader that was stopped in the middle of a transaction holds up its successor, and should
	// be shorter than the TTL of the elections. Default 10 s, two thirds of the default TTL. Negative: the server's own setting stays.
	// SQLite has no server that could: see docs/fencing.md.
	IdleTimeout time.Duration
}

// A Tx is the caller's transaction: a *sql.Tx, or a *sql.Conn on which the caller has begun one. On a connection without
// a transaction a check protects nothing.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// A Guard refuses stale tokens in one database. It holds no connection and no state but its statements; all methods may be called concurrently.
type Guard struct {
	dialect     Dialect
	namespace   string
	idleTimeout time.Duration

	fence, elections, sessions string // tables, qualified and quoted
	now                        string // microseconds since the epoch, as an expression

	raise         string // raises the bar under a lock; empty where check does that as well
	check         string // yields the bar
	lockElections string // locks them; empty where checkTerm does that as well
	checkTerm     string // yields the election's token and, unless it fails for a dead term, whether the term lives

	clause, termClause string // with braces for expand to fill in
	create, exists     string
}

// New returns a guard. Its error wraps driver.ErrInvalid and names the field.
func New(config Config) (*Guard, error) {
	if config.Namespace == "" {
		config.Namespace = "tenure"
	}
	if err := driver.CheckName("Namespace", config.Namespace); err != nil {
		return nil, err
	}
	if config.IdleTimeout == 0 {
		config.IdleTimeout = 10 * time.Second
	}
	if config.IdleTimeout > 0 && config.IdleTimeout < time.Millisecond || config.IdleTimeout > math.MaxInt32*time.Millisecond {
		return nil, fmt.Errorf("%w: IdleTimeout is %v: choose between 1 ms and 24 days", driver.ErrInvalid, config.IdleTimeout)
	}
	g := &Guard{dialect: config.Dialect, namespace: config.Namespace, idleTimeout: config.IdleTimeout}
	switch config.Dialect {
	case Postgres:
		g.preparePostgres()
	case SQLite:
		g.prepareSQLite()
	default:
		return nil, fmt.Errorf("%w: Dialect is %q: choose fence.Postgres or fence.SQLite", driver.ErrInvalid, config.Dialect)
	}
	return g, nil
}

// IdleTimeout returns the configured timeout or its default; negative when there is none.
func (g *Guard) IdleTimeout() time.Duration { return g.idleTimeout }

// Check refuses a token lower than one that a committed transaction has brought for the resource, and raises the bar when it is higher. Until
// tx ends no other transaction can raise the bar. It is one statement (two on SQLite, which has no round trips) and waits for
// transactions that are open with an other token, until ctx ends. Call it before the transaction's writes; at the isolation levels above READ COMMITTED best as
// its first statement.
//
// A *StaleError says that the token is stale; on PostgreSQL tx is then aborted. An error that wraps driver.ErrInvalid can never succeed as it was made. Any
// other error says nothing about the token: roll back and, at the isolation levels above READ COMMITTED where a serialization failure (SQLSTATE 40001) is to be
// expected, or on SQLITE_BUSY, start the transaction again.
func (g *Guard) Check(ctx context.Context, tx Tx, resource string, token uint64) error {
	if _, ok := tx.(*sql.DB); ok {
		return fmt.Errorf("%w: tx is a *sql.DB: begin a transaction and pass that, or call Raise", driver.ErrInvalid)
	}
	if err := CheckArguments("resource", resource, token); err != nil {
		return err
	}
	if g.raise != "" {
		if _, err := tx.ExecContext(ctx, g.raise, resource, int64(token)); err != nil {
			return g.Explain(err, resource, token)
		}
	}
	var seen int64
	if err := queryRow(ctx, tx, g.check, []any{resource, int64(token)}, &seen, new(any)); err != nil {
		return g.Explain(err, resource, token)
	}
	if uint64(seen) > token {
		return &StaleError{Resource: resource, Token: token, Seen: uint64(seen)}
	}
	return nil
}

// Raise is Check in a transaction of its own, which protects no write but refuses lower tokens from now on. A leader that calls it at the start of its term
// refuses its predecessor before its own first write. [Guard.Clause] needs it.
func (g *Guard) Raise(ctx context.Context, db *sql.DB, resource string, token uint64) error {
	return g.InTx(ctx, db, nil, resource, token, func(*sql.Tx) error { return nil })
}

// InTx runs write in a transaction after a check, and commits when it returns nil. Options may be nil. An error of the commit, other than a
// refusal, leaves open whether the transaction took effect. InTx does not retry.
func (g *Guard) InTx(ctx context.Context, db *sql.DB, options *sql.TxOptions, resource string, token uint64, write func(*sql.Tx) error) error {
	if err := CheckArguments("resource", resource, token); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, options)
	if err != nil {
		return err
	}
	defer tx.Rollback() // no effect after the commit
	if err := g.Check(ctx, tx, resource, token); err != nil {
		return err
	}
	if err := write(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// CheckTerm refuses unless the session that was elected with the token still holds the election and is alive by the database's clock. Until tx ends no
// successor can be elected; renewals go on meanwhile. It needs the elections' tables in the same database. Errors are those of Check.
func (g *Guard) CheckTerm(ctx context.Context, tx Tx, election string, token uint64) error {
	if _, ok := tx.(*sql.DB); ok {
		return fmt.Errorf("%w: tx is a *sql.DB: begin a transaction and pass that", driver.ErrInvalid)
	}
	if err := CheckArguments("election", election, token); err != nil {
		return err
	}
	if g.lockElections != "" {
		if _, err := tx.ExecContext(ctx, g.lockElections); err != nil {
			return g.ExplainTerm(err, election, token)
		}
	}
	var last int64
	var alive bool
	err := queryRow(ctx, tx, g.checkTerm, []any{election, int64(token)}, &last, &alive, new(any))
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return g.ExplainTerm(err, election, token)
	}
	if uint64(last) != token || !alive {
		return &StaleError{Election: election, Token: token, Seen: uint64(last)}
	}
	return nil
}

// queryRow scans the first row and closes the rows in any case; sql.ErrNoRows says that there was none.
func queryRow(ctx context.Context, tx Tx, query string, arguments []any, into ...any) error {
	rows, err := tx.QueryContext(ctx, query, arguments...)
	if err != nil {
		return err
	}
	defer rows.Close()
	if !rows.Next() {
		return cmp.Or(rows.Err(), sql.ErrNoRows)
	}
	if err := rows.Scan(into...); err != nil {
		return err
	}
	return rows.Close()
}

// CheckArguments returns the error, wrapping driver.ErrInvalid, of a resource's or election's name or a token that no check would accept. Field is the
// name's, for the error. Callers of the checks need not call it; those of the clauses may.
func CheckArguments(field, name string, token uint64) error {
	if err := driver.CheckName(field, name); err != nil {
		return err
	}
	if token == 0 {
		return fmt.Errorf("%w: token is 0, which no term has: pass Term.Token()", driver.ErrInvalid)
	}
	if token > math.MaxInt64 {
		return fmt.Errorf("%w: token %d is above %d, the greatest that the database's bigint holds: only tokens of a store with smaller ones can be guarded in SQL",
			driver.ErrInvalid, token, int64(math.MaxInt64))
	}
	return nil
}
