package fencepgx

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gotenure/tenure/driver"
)

// ErrHoldLost is the cause of the context of [Guard.Hold] when the database can no longer be trusted to keep higher tokens out.
var ErrHoldLost = errors.New("the guard's transaction was lost")

// Hold runs work, which writes to something other than this database, while higher tokens are kept out: it raises the bar to the token for
// good, and then keeps a transaction open that others of the same token share and that a higher token waits for. The wait is as
// long as work, or as [fence.Config.IdleTimeout] when this process is stopped or cut off, for then the server ends the transaction.
//
// Hold asks the server every quarter of IdleTimeout whether the transaction is still there. Its context is cancelled with the cause ErrHoldLost
// when there has been no answer to a question asked in the last three quarters of it, or at once when the connection breaks. Work that stops within
// the remaining quarter is over before a higher token is let in. A process that is stopped as a whole (SIGSTOP, a sleeping machine) cannot stop its work in time; what it then
// still does is not guarded. That, and not a promise of atomicity, is what a guard outside of the resource can do.
//
// It returns the error of work; ErrHoldLost, wrapped, when work returned nil after a loss; or, before work was started, an error as Check does.
// It needs a guard with an IdleTimeout.
func (g *Guard) Hold(ctx context.Context, db Beginner, resource string, token uint64, work func(context.Context) error) error {
	idle := g.statements.IdleTimeout()
	if idle <= 0 {
		return fmt.Errorf("%w: IdleTimeout is %v: Hold needs one, or a stopped process keeps its successor out for ever", driver.ErrInvalid, idle)
	}
	// By itself first, so that lower tokens are refused from now on rather than left waiting for the end of work, and
	// equal ones let in: a transaction that raises the bar shares it with none.
	if err := g.Raise(ctx, db, resource, token); err != nil {
		return err
	}
	asked := time.Now()
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	// The transaction is left by a context that outlives a cancelled ctx, and bounded.
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), idle/4)
		defer cancel()
		tx.Rollback(ending) // it wrote nothing; a failure leaves it to the server
	}()
	if err := g.Check(ctx, tx, resource, token); err != nil {
		return err
	}
	var milliseconds int64 // what the check has set, or the server's own when that is shorter
	const setting = "SELECT (extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint"
	if err := tx.QueryRow(ctx, setting).Scan(&milliseconds); err != nil {
		return err
	}
	idle = time.Duration(milliseconds) * time.Millisecond

	working, lose := context.WithCancelCause(ctx)
	stop := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		watch(tx, asked, idle, stop, lose)
	}()
	err = work(working)
	close(stop)
	<-watched
	if err == nil && errors.Is(context.Cause(working), ErrHoldLost) {
		err = context.Cause(working)
	}
	lose(context.Canceled)
	return err
}

// watch keeps the transaction from being idle and calls lose when that fails. Trust is counted from before a question was sent.
func watch(tx pgx.Tx, asked time.Time, idle time.Duration, stop <-chan struct{}, lose context.CancelCauseFunc) {
	ticks := time.NewTicker(idle / 4)
	defer ticks.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticks.C:
		}
		sent := time.Now()
		ctx, cancel := context.WithDeadline(context.Background(), asked.Add(idle*3/4))
		_, err := tx.Exec(ctx, "SELECT")
		cancel()
		if err != nil {
			lose(fmt.Errorf("%w: %w", ErrHoldLost, err))
			return
		}
		asked = sent
	}
}
