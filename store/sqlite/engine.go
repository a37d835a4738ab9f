package sqlite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/sqlstore"
	"github.com/ncruces/go-sqlite3"
)

// An engine runs scripts on the file that is at its path, whichever that is.
type engine struct {
	path string // absolute
	opts Options
	log  *slog.Logger

	turn     chan struct{} // holds one value; who takes it may change current
	current  atomic.Pointer[database]
	orphaned bool // what was current has gone, and nothing has taken its place; belongs to who has the turn
	closed   chan struct{}
	closing  sync.Once
	workers  sync.WaitGroup

	poll poll // of Version alone
}

var (
	_ sqlstore.Engine  = (*engine)(nil)
	_ sqlstore.Changer = (*engine)(nil)
)

// database returns the database, another one if another file is at the path.
func (e *engine) database(ctx context.Context) (*database, error) {
	if d := e.current.Load(); d != nil && d.same() {
		return d, nil
	}
	select {
	case <-e.turn:
		defer func() { e.turn <- struct{}{} }()
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for another call that opens the file: %w", context.Cause(ctx))
	}
	select {
	case <-e.closed:
		return nil, errClosed
	default:
	}
	if d := e.current.Load(); d != nil {
		if d.same() {
			return d, nil
		}
		e.drop(d)
	}
	d, err := openDatabase(ctx, e.path, e.opts)
	if err != nil {
		if e.orphaned && !errors.Is(err, errReplaced) {
			err = fmt.Errorf("%w: %w", errReplaced, err)
		}
		return nil, err
	}
	e.orphaned = false
	e.current.Store(d)
	e.workers.Go(func() { e.guard(d) })
	return d, nil
}

// drop makes a database be over whose file is not at the path any more. The caller has the turn.
func (e *engine) drop(d *database) {
	e.log.Warn("the SQLite file was deleted or replaced; all sessions in it are lost", "file", e.path)
	e.current.Store(nil)
	e.orphaned = true
	d.disown()
	e.workers.Go(func() { e.retire(d) })
}

// guard drops the database soon after its file has gone, though nothing else in this process may use it: other processes wait for that.
func (e *engine) guard(d *database) {
	w, err := newWatch(d.path, false)
	if err != nil {
		e.log.Debug("looking every 5 s whether the SQLite file is still there", "file", d.path, "error", err)
		w = &watch{}
	} else {
		defer w.close()
	}
	tick := time.NewTicker(5 * time.Second)
	if err == nil {
		tick.Stop()
	}
	defer tick.Stop()
	for d.same() {
		select {
		case <-w.stirred:
		case <-tick.C:
		case <-d.closing:
			return
		}
	}
	select {
	case <-e.turn:
		defer func() { e.turn <- struct{}{} }()
	case <-d.closing:
		return
	}
	if e.current.Load() == d {
		e.drop(d)
	}
}

// retire closes a database whose file is not at the path any more, once everybody who had a session in it must have given up. Until then
// other processes see by its open files that they have to wait: see settle.
func (e *engine) retire(d *database) {
	defer d.close(true)
	// Not as the file says it: who opens the new one may be writing to a log that the old one had.
	for remaining := d.leased(); remaining > 0; remaining = d.leased() {
		select {
		case <-time.After(remaining):
		case <-e.closed:
			return
		}
	}
}

// Run implements sqlstore.Engine.
func (e *engine) Run(ctx context.Context, script sqlstore.Script) ([][]sqlstore.Row, error) {
	d, err := e.database(ctx)
	if err != nil {
		if script.Urgent && errors.Is(err, errReplaced) {
			// Whatever keeps the new file from being opened, the session was in the old one.
			return nil, fmt.Errorf("%w: %w", driver.ErrSessionLost, err)
		}
		return nil, err
	}
	if script.Lease > 0 {
		d.lease(script.Lease)
	}
	if script.Urgent {
		return d.renew.do(ctx, func(ctx context.Context, c *connection) ([][]sqlstore.Row, error) {
			if err := follow(ctx, c); err != nil {
				return nil, c.withContext(ctx, err)
			}
			rows, err := c.transact(ctx, script)
			return rows, c.withContext(ctx, err)
		})
	}
	c := d.work
	if script.ReadOnly {
		c = d.read
	}
	rows, err := c.run(ctx, script)
	if errors.Is(err, sqlite3.CONSTRAINT_NOTNULL) || errors.Is(err, sqlstore.ErrNoTables) {
		// Somebody has emptied tenure_token or tenure_clock, or dropped a table. Nothing was changed, and the caller asks again.
		if failed := d.prepare(ctx, e.opts.NoCreate, true); failed != nil {
			err = errors.Join(err, failed)
		}
	}
	return rows, err
}

// prepare creates what is missing in the file.
func (e *engine) prepare(ctx context.Context) error {
	d, err := e.database(ctx)
	if err != nil {
		return err
	}
	return d.prepare(ctx, e.opts.NoCreate, true)
}

// Close implements sqlstore.Engine.
func (e *engine) Close() error {
	e.closing.Do(func() { close(e.closed) })
	timer := time.NewTimer(3 * time.Second)
	defer timer.Stop()
	select {
	case <-e.turn:
	case <-timer.C:
		return errors.New("a call that opens the file does not return: it is left behind")
	}
	if d := e.current.Swap(nil); d != nil {
		d.close(!d.same())
	}
	e.turn <- struct{}{}
	e.workers.Wait()
	e.poll.close()
	return nil
}
