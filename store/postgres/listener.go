package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	mathrand "math/rand/v2"

	"github.com/jackc/pgx/v5"

	"github.com/gotenure/tenure/store/sqlstore"
)

const (
	// silence is how long the listener believes in a connection on which nothing arrives. Then it asks.
	silence = 5 * time.Second
	// answerLimit is how long the answer may take. Both together are less than the 15 s in which a dead watch has to be noticed.
	answerLimit = 5 * time.Second

	reconnectMin = 100 * time.Millisecond
	reconnectMax = 5 * time.Second
)

// errPooler says that a pooler stands between, which gives a client's transactions to any server connection: notifications do not arrive.
var errPooler = errors.New("notifications do not arrive: a pooler in transaction mode")

// A listener hears the notifications of one schema on a connection of its own, and replaces the connection when it is dead.
type listener struct {
	connect  func(ctx context.Context) (*pgx.Conn, error)
	channel  string // of all changes
	own      string // of what concerns this store
	pushing  func(bool)
	heard    func(sqlstore.Event)
	log      *slog.Logger
	cancel   context.CancelFunc
	finished chan struct{}

	mu        sync.Mutex
	interrupt context.CancelFunc // ends the wait for a notification
	requests  []request          // to be done on the connection, by its owner
	epoch     int                // counts connections; 0: there is none yet
	connected bool
	attending bool // channel is to be listened to
}

// A request is a statement to run on the listener's connection.
type request struct {
	sql  string
	args []any
	done chan error // buffer of one
}

func (l *listener) start(conn *pgx.Conn) {
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel, l.finished = cancel, make(chan struct{})
	l.setConnected(true)
	go func() {
		defer close(l.finished)
		l.run(ctx, conn)
	}()
}

func (l *listener) close() {
	l.cancel()
	select {
	case <-l.finished:
	case <-time.After(3 * time.Second):
	}
}

// run listens until the context ends. conn listens already.
func (l *listener) run(ctx context.Context, conn *pgx.Conn) {
	warned, fresh := false, true
	for failures := 0; ; failures++ {
		var err error
		if conn == nil {
			attempt, cancel := context.WithTimeout(ctx, answerLimit)
			conn, err = l.connect(attempt)
			if err == nil {
				if err = l.listen(attempt, conn); err != nil {
					hangUp(conn)
					conn = nil
				}
			}
			cancel()
		}
		if conn != nil {
			failures = 0
			if !fresh {
				l.setConnected(true)
			}
			fresh = false
			if err = l.catchUp(ctx, conn); err == nil {
				l.pushing(true)
				err = l.receive(ctx, conn)
			}
			l.setConnected(false)
			l.pushing(false)
			hangUp(conn)
			conn = nil
		}
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errPooler) && !warned {
			warned = true
			l.log.Warn("tenure: polling instead of listening", "store", "postgres", "error", err)
		} else {
			l.log.Info("tenure: the connection for notifications is lost; polling until there is another", "store", "postgres", "error", err)
		}
		pause := min(reconnectMax, reconnectMin<<min(failures, 10))
		select {
		case <-ctx.Done():
			return
		case <-time.After(mathrand.N(pause) + pause/10):
		}
	}
}

func (l *listener) setConnected(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.connected = on
	if on {
		l.epoch++
		return
	}
	for _, r := range l.requests {
		r.done <- errors.New("the connection for notifications is lost")
	}
	l.requests = nil
}

// receive returns when the connection is dead.
func (l *listener) receive(ctx context.Context, conn *pgx.Conn) error {
	for {
		wait, cancel := context.WithTimeout(ctx, silence)
		l.mu.Lock()
		l.interrupt = cancel
		requests := l.requests
		l.requests = nil
		l.mu.Unlock()
		if len(requests) > 0 {
			cancel()
			if err := serve(ctx, conn, requests); err != nil {
				return err
			}
			continue
		}
		n, err := conn.WaitForNotification(wait)
		quiet := wait.Err() != nil
		cancel()
		switch {
		case err == nil:
			if e, ok := parseEvent(n.Payload); ok && (n.Channel == l.own || n.Channel == l.channel) {
				l.heard(e)
			}
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		case !quiet || conn.IsClosed():
			return err
		}
		ask, cancel := context.WithTimeout(ctx, answerLimit)
		err = conn.Ping(ask)
		cancel()
		if err != nil {
			return fmt.Errorf("no answer after %v of silence: %w", silence, err)
		}
	}
}

func serve(ctx context.Context, conn *pgx.Conn, requests []request) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	var failed error
	for _, r := range requests {
		if failed == nil {
			_, failed = conn.Exec(ctx, r.sql, r.args...)
		}
		r.done <- failed
	}
	return failed
}

// do runs a statement on the listener's connection and returns the number of the connection.
func (l *listener) do(ctx context.Context, sql string, args ...any) (int, error) {
	r := request{sql, append([]any{pgx.QueryExecModeExec}, args...), make(chan error, 1)}
	l.mu.Lock()
	if !l.connected {
		l.mu.Unlock()
		return 0, errors.New("there is no connection for notifications at present")
	}
	epoch := l.epoch
	l.requests = append(l.requests, r)
	if l.interrupt != nil {
		l.interrupt()
	}
	l.mu.Unlock()
	select {
	case err := <-r.done:
		return epoch, err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// attend listens to all changes from its return on.
func (l *listener) attend(ctx context.Context) error {
	l.mu.Lock()
	attending := l.attending && l.connected
	l.attending = true // for the connections to come too
	l.mu.Unlock()
	if attending {
		return nil
	}
	_, err := l.do(ctx, "LISTEN "+quoted(l.channel))
	return err
}

// catchUp listens for those who called attend after listen had looked and before the connection was there for do. To listen twice is no error.
func (l *listener) catchUp(ctx context.Context, conn *pgx.Conn) error {
	l.mu.Lock()
	attending := l.attending
	l.mu.Unlock()
	if !attending {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	return plain(ctx, conn, "LISTEN "+quoted(l.channel))
}

// has reports whether the connection with that number is still the one in use.
func (l *listener) has(epoch int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.connected && l.epoch == epoch
}

// listen makes a connection listen, and makes sure that something is heard on it. errPooler: nothing is.
func (l *listener) listen(ctx context.Context, conn *pgx.Conn) error {
	sql := "LISTEN " + quoted(l.own)
	l.mu.Lock()
	if l.attending {
		sql += "; LISTEN " + quoted(l.channel)
	}
	l.mu.Unlock()
	if err := plain(ctx, conn, sql); err != nil {
		return err
	}
	pid, direct, err := backend(ctx, conn)
	if err != nil || direct {
		return err
	}
	// A pooler answers with a number of its own. In session mode that does no harm: hear whether it is. Its other mode gives the connection to others between
	// transactions, and drops what arrives meanwhile.
	nonce := "nonce " + rand.Text()
	other, err := l.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(other)
	if err := plain(ctx, other, "NOTIFY "+quoted(l.own)+", "+literal(nonce)); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for {
		n, err := conn.WaitForNotification(wait)
		switch {
		case err == nil && n.Payload == nonce && !again(ctx, conn, pid):
			return nil
		case err == nil && n.Payload == nonce, err != nil && wait.Err() != nil && ctx.Err() == nil:
			_ = plain(ctx, conn, "UNLISTEN *") // with luck on the same server connection
			return errPooler
		case err != nil:
			return err
		}
	}
}

// again reports whether the server connection behind conn has changed.
func again(ctx context.Context, conn *pgx.Conn, pid uint32) bool {
	now, _, err := backend(ctx, conn)
	return err != nil || now != pid
}

// backend returns the process that serves the connection, and whether it is the one that the connection was made to.
func backend(ctx context.Context, conn *pgx.Conn) (pid uint32, direct bool, err error) {
	err = conn.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid)
	return pid, err == nil && pid == conn.PgConn().PID(), err
}

// plain runs a statement without parameters, unprepared, which any pooler takes.
func plain(ctx context.Context, conn *pgx.Conn, sql string) error {
	_, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// parseEvent parses what Notify of the dialect composes.
func parseEvent(payload string) (sqlstore.Event, bool) {
	f := strings.SplitN(payload, " ", 6)
	if len(f) != 6 || len(f[0]) != 1 {
		return sqlstore.Event{}, false
	}
	token, err := strconv.ParseUint(f[2], 10, 63)
	acquired, err2 := strconv.ParseInt(f[3], 10, 64)
	nonce, err3 := strconv.ParseInt(f[4], 10, 64)
	kind := sqlstore.Kind(f[0][0])
	if err != nil || err2 != nil || err3 != nil || kind != sqlstore.Taken && kind != sqlstore.Given && kind != sqlstore.Asked {
		return sqlstore.Event{}, false
	}
	return sqlstore.Event{Kind: kind, Session: f[1], Token: token, AcquiredAt: acquired, Nonce: nonce, Election: f[5]}, true
}
