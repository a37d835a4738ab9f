package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotenure/tenure/store/sqlstore"
	"github.com/ncruces/go-sqlite3"
)

// A connection is one connection to the file, owned by a goroutine of its own. So a caller whose context ends gets away although a disk
// hangs, and scripts that find the connection in use queue for it in order.
type connection struct {
	requests chan request
	quit     chan struct{} // closed to stop the goroutine
	stopped  chan struct{} // closed by it
	stopOnce sync.Once
	abandon  atomic.Bool // close without checkpoint: the files at the paths are not this connection's any more

	// The rest belongs to the goroutine.
	db         *sqlite3.Conn
	boot       int64 // microseconds since the machine was started, when the statement began
	statements map[string]*sqlite3.Stmt
	path       string
	waited     time.Time // when the busy handler was called first, for the transaction
	asked      time.Time // when it was found out last who is in the way
	holder     string    // who that was
}

type request struct {
	ctx   context.Context
	work  func(ctx context.Context, c *connection) ([][]sqlstore.Row, error)
	reply chan reply
}

type reply struct {
	rows [][]sqlstore.Row
	err  error
}

// afterwards is how long a call whose context has ended waits for its answer, which normally comes at once: the context interrupts SQLite
// everywhere but in a system call.
const afterwards = 100 * time.Millisecond

// openConnection opens the existing file at path, an absolute path without symbolic links.
func openConnection(ctx context.Context, path string) (*connection, error) {
	// No OPEN_CREATE: the file was created before, with the mode it should have. Others of its files have the same by modeof.
	name := url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: "modeof=" + strings.ReplaceAll(url.QueryEscape(path), "+", "%20")}
	db, err := sqlite3.OpenFlags(name.String(), sqlite3.OPEN_READWRITE|sqlite3.OPEN_URI)
	if err != nil {
		return nil, explain(path, err)
	}
	c := &connection{
		requests: make(chan request), quit: make(chan struct{}), stopped: make(chan struct{}),
		db: db, statements: make(map[string]*sqlite3.Stmt), path: path,
	}
	if err := c.setUp(ctx); err != nil {
		db.Close()
		return nil, c.withContext(ctx, err)
	}
	go c.loop()
	return c, nil
}

func (c *connection) setUp(ctx context.Context) error {
	old := c.db.SetInterrupt(ctx)
	defer c.db.SetInterrupt(old)
	if err := c.db.BusyHandler(c.busy); err != nil {
		return err
	}
	err := c.db.CreateFunction("tenure_boot", 0, 0, func(result sqlite3.Context, _ ...sqlite3.Value) { result.ResultInt64(c.boot) })
	if err != nil {
		return err
	}
	// The change to WAL of a new file needs it alone for a moment, and does not call the busy handler.
	for {
		err = c.db.Exec("PRAGMA journal_mode = WAL")
		if !errors.Is(err, sqlite3.BUSY) || !c.busy(ctx, 0) {
			break
		}
	}
	if err != nil {
		return err
	}
	// FULL: a commit is on the disk before it is reported, so that a token survives a power cut. The default of WAL mode in some builds, NORMAL,
	// may lose the last commits, and a token would be used twice.
	if err := c.db.Exec("PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY; PRAGMA trusted_schema = OFF"); err != nil {
		return err
	}
	rows, err := c.query("PRAGMA journal_mode")
	if err != nil {
		return err
	}
	if mode, _ := rows[0][0].(string); !strings.EqualFold(mode, "wal") {
		return fmt.Errorf("journal mode is %q and cannot be changed to WAL", mode)
	}
	return nil
}

// busy is called when another connection is in the way, and says whether to try again. SQLite's own handler backs off to
// 100 ms, and among processes that write flat out its victim waits for seconds. Short waits with jitter are fair; see README.md.
func (c *connection) busy(ctx context.Context, count int) bool {
	if count == 0 || c.waited.IsZero() {
		c.waited = time.Now()
	}
	if time.Since(c.waited) > 200*time.Millisecond && time.Since(c.asked) > 2*time.Second {
		// Not when the context has ended: it takes a while on a busy machine, and then the caller has gone.
		c.holder, c.asked = whoHolds(c.path), time.Now()
	}
	pause := time.Millisecond + rand.N(time.Millisecond)
	if time.Since(c.waited) > 2*time.Second {
		// Nobody who runs holds the lock for so long: its owner is stopped, or its disk hangs.
		pause = 20*time.Millisecond + rand.N(10*time.Millisecond)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-c.quit:
		return false
	case <-timer.C:
		return true
	}
}

func (c *connection) loop() {
	defer close(c.stopped)
	defer func() {
		for _, statement := range c.statements {
			statement.Close()
		}
		if c.abandon.Load() {
			// Closing the last connection removes the write-ahead log by its path, which may be that of another file by now.
			if _, err := c.db.Config(sqlite3.DBCONFIG_NO_CKPT_ON_CLOSE, true); err != nil {
				return // a leaked connection is better than a lost log
			}
		}
		c.db.Close()
	}()
	for {
		select {
		case <-c.quit:
			return
		case r := <-c.requests:
			c.db.SetInterrupt(r.ctx)
			c.waited, c.asked, c.holder = time.Time{}, time.Time{}, ""
			rows, err := r.work(r.ctx, c)
			r.reply <- reply{rows, err}
		}
	}
}

// do has the goroutine do the work. The work must keep nothing that the caller uses, for it may outlast the call.
func (c *connection) do(ctx context.Context, work func(context.Context, *connection) ([][]sqlstore.Row, error)) ([][]sqlstore.Row, error) {
	r := request{ctx, work, make(chan reply, 1)}
	select {
	case c.requests <- r:
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for other calls to finish: %w", context.Cause(ctx))
	case <-c.quit:
		return nil, errClosed
	}
	select {
	case answer := <-r.reply:
		return answer.rows, answer.err
	case <-ctx.Done():
	}
	timer := time.NewTimer(afterwards)
	defer timer.Stop()
	select {
	case answer := <-r.reply:
		return answer.rows, answer.err
	case <-timer.C:
		return nil, fmt.Errorf("the file system does not answer: %w", context.Cause(ctx))
	}
}

// run runs a script.
func (c *connection) run(ctx context.Context, script sqlstore.Script) ([][]sqlstore.Row, error) {
	return c.do(ctx, func(ctx context.Context, c *connection) ([][]sqlstore.Row, error) {
		rows, err := c.transact(ctx, script)
		if err != nil {
			err = c.withContext(ctx, err)
		}
		return rows, err
	})
}

// transact runs a script in a transaction. It is as short as can be, for a process that is stopped inside one stops all others.
func (c *connection) transact(ctx context.Context, script sqlstore.Script) (_ [][]sqlstore.Row, err error) {
	if script.ReadOnly && len(script.Stmts) == 1 {
		rows, err := c.query(script.Stmts[0].SQL, script.Stmts[0].Args...)
		return [][]sqlstore.Row{rows}, err
	}
	// Compiling comes first, so that it takes no time while others wait.
	for _, statement := range script.Stmts {
		if _, err := c.prepare(statement.SQL); err != nil {
			return nil, err
		}
	}
	begin := "BEGIN IMMEDIATE"
	if script.ReadOnly {
		begin = "BEGIN"
	}
	if _, err := c.query(begin); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && !c.db.GetAutocommit() {
			c.db.SetInterrupt(context.Background())
			if _, failed := c.query("ROLLBACK"); failed != nil {
				err = errors.Join(err, failed)
			}
		}
	}()
	answers := make([][]sqlstore.Row, len(script.Stmts))
	for i, statement := range script.Stmts {
		if answers[i], err = c.query(statement.SQL, statement.Args...); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.db.SetInterrupt(context.Background())
	if _, err := c.query("COMMIT"); err != nil {
		return nil, err
	}
	return answers, nil
}

func (c *connection) prepare(sql string) (*sqlite3.Stmt, error) {
	statement := c.statements[sql]
	if statement == nil {
		var err error
		if statement, _, err = c.db.PrepareFlags(sql, sqlite3.PREPARE_PERSISTENT); err != nil {
			return nil, err
		}
		c.statements[sql] = statement
	}
	return statement, nil
}

// query runs one statement to its end.
func (c *connection) query(sql string, args ...any) (_ []sqlstore.Row, err error) {
	statement, err := c.prepare(sql)
	if err != nil {
		return nil, err
	}
	defer func() {
		if failed := statement.Reset(); err == nil && failed != nil {
			err = failed
		}
		if failed := statement.ClearBindings(); err == nil && failed != nil {
			err = failed
		}
	}()
	for i, arg := range args {
		if err := bind(statement, i+1, arg); err != nil {
			return nil, err
		}
	}
	c.boot = sinceBoot()
	var rows []sqlstore.Row
	for statement.Step() {
		row := make(sqlstore.Row, statement.ColumnCount())
		for i := range row {
			switch statement.ColumnType(i) {
			case sqlite3.INTEGER:
				row[i] = statement.ColumnInt64(i)
			case sqlite3.BLOB:
				row[i] = statement.ColumnBlob(i, []byte{})
			case sqlite3.NULL:
			default:
				row[i] = statement.ColumnText(i)
			}
		}
		rows = append(rows, row)
	}
	return rows, statement.Err()
}

func bind(statement *sqlite3.Stmt, n int, arg any) error {
	switch arg := arg.(type) {
	case string:
		return statement.BindText(n, arg)
	case int64:
		return statement.BindInt64(n, arg)
	case []byte:
		if arg == nil {
			arg = []byte{} // BindBlob binds NULL for nil
		}
		return statement.BindBlob(n, arg)
	}
	return fmt.Errorf("argument %d has type %T", n, arg)
}

// withContext makes the error of a call whose context has ended wrap the context's, and says who is in the way.
func (c *connection) withContext(ctx context.Context, err error) error {
	busy := errors.Is(err, sqlite3.BUSY)
	if busy && c.holder != "" {
		err = fmt.Errorf("%w; %s", err, c.holder)
	}
	if ctx.Err() != nil && (busy || errors.Is(err, sqlite3.INTERRUPT)) {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return explain(c.path, err)
}

// stop ends the goroutine once its current work is done. It does not wait.
func (c *connection) stop() { c.stopOnce.Do(func() { close(c.quit) }) }
