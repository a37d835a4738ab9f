package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/sqlstore"
)

// Options are what may be chosen. The zero value is fine.
type Options struct {
	// Schema is the name of the schema with the tables, at most 63 bytes. Empty: DefaultSchema. All members of an election need the same.
	Schema string

	// NoCreate says that missing tables are an error. Else they are created, by the first process that misses them and may.
	NoCreate bool

	// Bound makes sessions connection-bound; see the package's documentation.
	Bound bool

	// Poll is how often to ask for news while something waits and notifications do not arrive: behind a pooler in transaction mode, or while
	// the connection for them is down. 0: 1 s, which is what a handover then takes at most. 10 ms to 1 min.
	Poll time.Duration

	// Logger is told, once, when a pooler makes the store poll, and of connections that are lost. Nil: silent; Info's Caveats speak of the pooler too.
	Logger *slog.Logger
}

// A Store is a driver.Store and a driver.Asker on PostgreSQL.
type Store struct {
	*sqlstore.Store
}

var (
	_ driver.Store = (*Store)(nil)
	_ driver.Asker = (*Store)(nil)
)

// Open connects to the database of a URL, as libpq and pgx know them:
//
//	postgres://user:password@host:port/database?sslmode=verify-full&schema=tenure
//
// Parameters of this package are schema, create (false: Options.NoCreate), bound and poll. The others go to pgx; unknown ones are an error. Open connects
// at once, checks the schema and creates it when it is missing. Errors that wrap driver.ErrInvalid say what has to be changed; none shows the password.
func Open(ctx context.Context, url string) (*Store, error) { return OpenWith(ctx, url, nil) }

// OpenWith is Open with a logger. Nil: silent.
func OpenWith(ctx context.Context, url string, logger *slog.Logger) (*Store, error) {
	config, opts, secrets, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	opts.Logger = logger
	return open(ctx, config, opts, secrets)
}

// New makes a store that connects as the pool does, with its hooks, but by connections of its own: what the pool's users do, such as use all its connections or
// change their settings, must not stop renewals. It uses at most 6 connections: 1 to listen, 1 to renew, and 4.
// Close leaves the pool open.
func New(ctx context.Context, pool *pgxpool.Pool, opts Options) (*Store, error) {
	config := pool.Config()
	config.MaxConns = generalConns
	return open(ctx, config, opts, []string{config.ConnConfig.Password})
}

// Init creates the schema of the store at the URL, whatever its parameter create says. It does no harm where the schema exists.
func Init(ctx context.Context, url string) error {
	config, opts, secrets, err := parseURL(url)
	if err != nil {
		return err
	}
	if err := opts.check(); err != nil {
		return err
	}
	complete(config)
	conn, err := dial(ctx, config)
	if err != nil {
		return redact(err, secrets)
	}
	defer hangUp(conn)
	return redact(prepare(ctx, conn, opts.Schema, true), secrets)
}

func open(ctx context.Context, config *pgxpool.Config, opts Options, secrets []string) (_ *Store, err error) {
	defer func() { err = redact(err, secrets) }()
	if err := opts.check(); err != nil {
		return nil, err
	}
	complete(config)
	conn, err := dial(ctx, config)
	if err != nil {
		return nil, err
	}
	listening := false
	defer func() {
		if !listening {
			hangUp(conn)
		}
	}()
	if v := conn.PgConn().ParameterStatus("server_version"); v != "" && major(v) < 12 {
		return nil, fmt.Errorf("postgres: %w: the server has version %s: version 12 or newer is needed", driver.ErrInvalid, v)
	}
	if err := prepare(ctx, conn, opts.Schema, !opts.NoCreate); err != nil {
		return nil, err
	}
	log := opts.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	e := &engine{schema: opts.Schema, role: config.ConnConfig.User, secrets: secrets}
	prefix := newPrefix()
	l := &listener{channel: channel(opts.Schema), own: channel(opts.Schema) + "." + prefix, log: log, connect: func(ctx context.Context) (*pgx.Conn, error) {
		conn, err := dial(ctx, config)
		return conn, redact(err, secrets)
	}}
	err = l.listen(ctx, conn)
	switch {
	case errors.Is(err, errPooler):
		if opts.Bound {
			return nil, fmt.Errorf("postgres: %w: bound=true does not work behind a pooler in transaction mode: connect to the server itself, or leave it out", driver.ErrInvalid)
		}
		e.begin = true
		log.Warn("tenure: a pooler in transaction mode stands before the database: polling for news instead of listening", "store", "postgres", "every", defaultPoll(opts.Poll))
	case err != nil:
		return nil, fmt.Errorf("postgres: listen: %w", err)
	}
	if err := e.pools(ctx, config); err != nil {
		return nil, fmt.Errorf("postgres: %w: %w", driver.ErrInvalid, err)
	}
	d := dialect(opts.Schema)
	d.Poll = opts.Poll
	options := sqlstore.Options{
		Info:   info(opts, !e.begin),
		Prefix: prefix,
		Prepare: func(ctx context.Context) error {
			conn, err := dial(ctx, config)
			if err != nil {
				return redact(err, secrets)
			}
			defer hangUp(conn)
			return redact(prepare(ctx, conn, opts.Schema, !opts.NoCreate), secrets)
		},
		Logger: log,
	}
	if !e.begin {
		options.Attend = l.attend
	}
	var ties *ties
	if opts.Bound {
		ties = newTies(l)
		options.Bound = ties
	}
	s := &Store{sqlstore.New(e, d, options)}
	if !e.begin {
		listening = true
		l.heard, l.pushing = s.Heard, func(on bool) {
			s.Pushing(on)
			if !on && ties != nil {
				s.Reconsider()
			}
		}
		e.listener = l
		l.start(conn)
	}
	return s, nil
}

func defaultPoll(poll time.Duration) time.Duration {
	if poll == 0 {
		return time.Second
	}
	return poll
}

func info(opts Options, push bool) driver.Info {
	i := driver.Info{
		Name:  "postgres",
		Push:  push,
		Token: "sequence " + qualified(opts.Schema, "token"),
		Clock: "the database's",
		Caveats: []string{
			"With asynchronous replicas a failover may forget the last commits: a token may then come twice, and two members may lead until the older one's lease ends. Use synchronous replication (synchronous_standby_names) where that matters.",
			"Expiry is decided by the server's clock: if it jumps, or differs between a primary and the standby that takes over, leases end earlier or later by as much.",
		},
	}
	if !push {
		i.Caveats = append(i.Caveats, fmt.Sprintf("A pooler in transaction mode stands before the database, so that nothing is pushed: members ask every %v, and a handover takes up to that long.", defaultPoll(opts.Poll)))
	}
	if opts.Bound {
		i.Caveats = append(i.Caveats, "Sessions are bound to their connection: when it breaks, a leader that is alive may be replaced before it knows. What it writes meanwhile must be guarded by its token.")
	}
	return i
}

// complete adds to a configuration what all connections need.
func complete(config *pgxpool.Config) {
	if config.ConnConfig.ValidateConnect == nil {
		// A standby answers with the past. Of several hosts take the primary.
		config.ConnConfig.ValidateConnect = primary
	}
	// pgx needs these, and a database may have other defaults. Poolers know both.
	config.ConnConfig.RuntimeParams["client_encoding"] = "UTF8"
	config.ConnConfig.RuntimeParams["standard_conforming_strings"] = "on"
}

// dial makes one connection, as the pool would.
func dial(ctx context.Context, config *pgxpool.Config) (*pgx.Conn, error) {
	cc := config.ConnConfig.Copy()
	cc.DefaultQueryExecMode = pgx.QueryExecModeExec
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, cc); err != nil {
			return nil, fmt.Errorf("postgres: BeforeConnect of the pool: %w", err)
		}
	}
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if config.AfterConnect != nil {
		if err := config.AfterConnect(ctx, conn); err != nil {
			hangUp(conn)
			return nil, fmt.Errorf("postgres: AfterConnect of the pool: %w", err)
		}
	}
	return conn, nil
}

// primary refuses a server that is in recovery.
func primary(ctx context.Context, conn *pgconn.PgConn) error {
	var failed *pgconn.PgError
	if err := pgconn.ValidateConnectTargetSessionAttrsPrimary(ctx, conn); errors.As(err, &failed) || err != nil && (ctx.Err() != nil || conn.IsClosed()) {
		return fmt.Errorf("ask whether it is the primary: %w", err)
	} else if err != nil {
		return fmt.Errorf("%w: elections need the primary: name its host, or all hosts of the cluster", err)
	}
	return nil
}

// major returns the first number of a version.
func major(version string) int {
	end := 0
	for end < len(version) && version[end] >= '0' && version[end] <= '9' {
		end++
	}
	n, _ := strconv.Atoi(version[:end])
	return n
}
