// Package fencepgx is package fence for pgx: it refuses, inside a pgx.Tx or a pgx.Batch, a write that carries the token of an earlier term. See package
// fence for what the checks promise.
package fencepgx

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/fence"
)

// A Beginner begins transactions: a *pgxpool.Pool, or a *pgx.Conn that nobody else uses.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Exec(ctx context.Context, query string, arguments ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, query string, arguments ...any) pgx.Row
}

// A Guard refuses stale tokens in one PostgreSQL database. Its methods may be called concurrently, for different connections.
type Guard struct {
	statements  *fence.Guard
	check, term string
}

// New returns a guard; config.Dialect may be left empty. Its error wraps driver.ErrInvalid and names the field.
func New(config fence.Config) (*Guard, error) {
	if config.Dialect == "" {
		config.Dialect = fence.Postgres
	}
	if config.Dialect != fence.Postgres {
		return nil, fmt.Errorf("%w: Dialect is %q: pgx speaks to fence.Postgres alone", driver.ErrInvalid, config.Dialect)
	}
	statements, err := fence.New(config)
	if err != nil {
		return nil, err
	}
	return &Guard{statements: statements, check: statements.CheckSQL(), term: statements.TermSQL()}, nil
}

// Fence returns the guard of package fence with the same configuration, for its clauses.
func (g *Guard) Fence() *fence.Guard { return g.statements }

// Check is [fence.Guard.Check]: one round trip. [Guard.Queue] joins it to the statements that follow.
func (g *Guard) Check(ctx context.Context, tx pgx.Tx, resource string, token uint64) error {
	if err := fence.CheckArguments("resource", resource, token); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, g.check, resource, int64(token))
	return g.statements.Explain(err, resource, token)
}

// CheckTerm is [fence.Guard.CheckTerm]: one round trip.
func (g *Guard) CheckTerm(ctx context.Context, tx pgx.Tx, election string, token uint64) error {
	if err := fence.CheckArguments("election", election, token); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, g.term, election, int64(token))
	return g.statements.ExplainTerm(err, election, token)
}

// Queue puts the check in a batch, which then costs no round trip of its own. The server skips what is queued behind a check that
// refuses, and aborts the transaction; a batch sent outside of a transaction is a transaction by itself. Pass the batch's error, or that of whatever was read
// from its results first, to [fence.Guard.Explain]. Queue returns an error, and queues nothing, when the arguments are invalid.
//
//	batch := &pgx.Batch{}
//	if err := guard.Queue(batch, "accounts", token); err != nil { … }
//	batch.Queue("UPDATE accounts SET …")
//	err := guard.Fence().Explain(pool.SendBatch(ctx, batch).Close(), "accounts", token)
func (g *Guard) Queue(batch *pgx.Batch, resource string, token uint64) error {
	if err := fence.CheckArguments("resource", resource, token); err != nil {
		return err
	}
	batch.Queue(g.check, resource, int64(token))
	return nil
}

// QueueTerm is Queue for [Guard.CheckTerm] and [fence.Guard.ExplainTerm].
func (g *Guard) QueueTerm(batch *pgx.Batch, election string, token uint64) error {
	if err := fence.CheckArguments("election", election, token); err != nil {
		return err
	}
	batch.Queue(g.term, election, int64(token))
	return nil
}

// Raise is [fence.Guard.Raise]: it refuses lower tokens from now on. One round trip.
func (g *Guard) Raise(ctx context.Context, db Beginner, resource string, token uint64) error {
	if err := fence.CheckArguments("resource", resource, token); err != nil {
		return err
	}
	_, err := db.Exec(ctx, g.check, resource, int64(token))
	return g.statements.Explain(err, resource, token)
}

// InTx runs write in a transaction after a check, and commits when it returns nil. An error of the commit, other than
// a refusal, leaves open whether the transaction took effect. InTx does not retry.
func (g *Guard) InTx(ctx context.Context, db Beginner, resource string, token uint64, write func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := g.Check(ctx, tx, resource, token); err != nil {
			return err
		}
		return write(tx)
	})
}

// CreateTable is [fence.Guard.CreateTable].
func (g *Guard) CreateTable(ctx context.Context, db Beginner) error {
	var exists bool
	if err := db.QueryRow(ctx, g.statements.Exists()).Scan(&exists); err != nil {
		return fmt.Errorf("looking for the table of the guard: %w", g.statements.Explain(err, "", 0))
	}
	if exists {
		return nil
	}
	if _, err := db.Exec(ctx, g.statements.CreateSQL()); err != nil {
		return g.statements.ExplainCreate(err)
	}
	return nil
}
