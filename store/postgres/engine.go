package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gotenure/tenure/store/sqlstore"
)

// Numbers of connections, of which there are at most these and one for notifications. Renewals have their own: they must not wait
// while thousands of elections are acquired.
const (
	urgentConns  = 1
	generalConns = 4
)

// An engine runs scripts as pipelines: one round trip, and one transaction that ends where the pipeline does.
type engine struct {
	general, urgent *pgxpool.Pool
	schema, role    string
	secrets         []string
	begin           bool // behind a pooler that shares connections by transaction, where a connection's settings are not ours to make
	listener        *listener
}

// begin and commit are for such a pooler. Whatever the defaults are, the statements need READ COMMITTED, and commits that last.
const (
	begin       = `BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE`
	lastCommits = `SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'`
	commit      = `COMMIT`

	// All statements find their few rows by index, in its order, whatever the parameters and however long the queue, so a plan can be made once.
	settings = `SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';
SET plan_cache_mode = force_generic_plan;
SET enable_sort = off`
)

// Run implements sqlstore.Engine.
func (e *engine) Run(ctx context.Context, script sqlstore.Script) ([][]sqlstore.Row, error) {
	answer, err := e.run(ctx, script)
	if err != nil {
		return nil, redact(explain(err, e.schema, e.role), e.secrets)
	}
	return answer, nil
}

func (e *engine) run(ctx context.Context, script sqlstore.Script) ([][]sqlstore.Row, error) {
	pool := e.general
	if script.Urgent {
		pool = e.urgent
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("no connection: %w", err)
	}
	defer conn.Release()

	return pipeline(ctx, conn.Conn(), script, e.begin && !script.ReadOnly)
}

// pipeline runs a script on a connection; wrap puts it between BEGIN and COMMIT.
func pipeline(ctx context.Context, conn *pgx.Conn, script sqlstore.Script, wrap bool) ([][]sqlstore.Row, error) {
	if script.ReadOnly && len(script.Stmts) == 1 {
		rows, err := conn.Query(ctx, script.Stmts[0].SQL, script.Stmts[0].Args...)
		if err != nil {
			return nil, err
		}
		first, err := values(rows)
		return [][]sqlstore.Row{first}, err
	}
	var batch pgx.Batch
	if wrap {
		batch.Queue(begin)
		batch.Queue(lastCommits)
	}
	for _, stmt := range script.Stmts {
		batch.Queue(stmt.SQL, stmt.Args...)
	}
	if wrap {
		batch.Queue(commit)
	}
	results := conn.SendBatch(ctx, &batch)
	answer, err := collect(results, script, wrap)
	// The transaction is committed when Close has read its end, not before.
	if closed := results.Close(); err == nil {
		err = closed
	}
	return answer, err
}

func collect(results pgx.BatchResults, script sqlstore.Script, wrap bool) ([][]sqlstore.Row, error) {
	if wrap {
		for range 2 {
			if _, err := results.Exec(); err != nil {
				return nil, err
			}
		}
	}
	answer := make([][]sqlstore.Row, len(script.Stmts))
	for i := range script.Stmts {
		rows, err := results.Query()
		if err != nil {
			return nil, err
		}
		if answer[i], err = values(rows); err != nil {
			return nil, err
		}
	}
	if wrap {
		tag, err := results.Exec()
		if err != nil {
			return nil, err
		}
		if tag.String() != "COMMIT" {
			return nil, errors.New("the transaction was rolled back")
		}
	}
	return answer, nil
}

func values(rows pgx.Rows) ([]sqlstore.Row, error) {
	defer rows.Close()
	var all []sqlstore.Row
	for rows.Next() {
		row, err := rows.Values()
		if err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	return all, rows.Err()
}

// Close implements sqlstore.Engine.
func (e *engine) Close() error {
	if e.listener != nil {
		e.listener.close()
	}
	closed := make(chan struct{})
	go func() {
		e.urgent.Close()
		e.general.Close()
		close(closed)
	}()
	select {
	case <-closed:
		return nil
	case <-time.After(3 * time.Second):
		// A call that does not return holds a connection. It is left to the call's context.
		return errors.New("postgres: a call is still using a connection")
	}
}

// rehearse makes a pool keep a connection, on which the database has planned what will be asked of it.
func (e *engine) rehearse(config *pgxpool.Config, urgent bool) {
	configured := config.AfterConnect
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if err := configured(ctx, conn); err != nil {
			return err
		}
		for _, script := range sqlstore.Rehearsal(dialect(e.schema)) {
			if script.Urgent != urgent {
				continue
			}
			if _, err := pipeline(ctx, conn, script, false); err != nil {
				return nil //nolint:nilerr // whoever needs the connection hears of it
			}
		}
		return nil
	}
	config.MinConns = 1
}

// uncancelled dials connections on which nothing is cancelled at the server when a context ends. Requests to cancel make PgBouncer 1.18 and 1.19 crash now and then
// (pgbouncer#822), and with it all who connect through it; what they would end has effects that are found out later anyway. TLS comes on top of such a connection.
func uncancelled(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if network == nowhere.Net {
			return nil, errors.New("requests are not cancelled through a pooler")
		}
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return unaddressed{conn}, nil
	}
}

// An unaddressed connection does not say where a request to cancel would have to go.
type unaddressed struct{ net.Conn }

func (unaddressed) RemoteAddr() net.Addr { return nowhere }

var nowhere = &net.UnixAddr{Net: "nowhere"}

// pools makes the pools. A pool connects when it is first used.
func (e *engine) pools(ctx context.Context, config *pgxpool.Config) error {
	after := config.AfterConnect
	base := config.Copy()
	base.MinConns, base.MinIdleConns = 0, 0
	base.ShouldPing = shouldPing
	if e.begin {
		base.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		base.ConnConfig.DialFunc = uncancelled(base.ConnConfig.DialFunc)
	} else {
		base.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			if after != nil {
				if err := after(ctx, conn); err != nil {
					return err
				}
			}
			_, err := conn.PgConn().Exec(ctx, settings).ReadAll()
			return err
		}
	}
	urgent := base.Copy()
	urgent.MaxConns = urgentConns
	if !e.begin {
		// Neither a handover nor a renewal must wait for a connection to be made: with a short TTL, on a busy machine, that can take all the time there is.
		e.rehearse(base, false)
		e.rehearse(urgent, true)
	}
	var err error
	if e.general, err = pgxpool.NewWithConfig(ctx, base); err != nil {
		return err
	}
	if e.urgent, err = pgxpool.NewWithConfig(ctx, urgent); err != nil {
		e.general.Close()
	}
	return err
}
