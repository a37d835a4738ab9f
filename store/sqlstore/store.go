package sqlstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/gotenure/tenure/driver"
)

// Bounds of a session's TTL. The least leaves a renewal every 30 ms; the greatest is what an operator may still wait for.
const (
	MinTTL = 100 * time.Millisecond
	MaxTTL = 24 * time.Hour
)

// pageSize is the number of records that List reads at a time.
const pageSize = 500

// errClosed is what methods return after Close.
var errClosed = errors.New("closed")

// Options are what New needs besides the engine and the dialect.
type Options struct {
	Info driver.Info // as the driver declares it; MinTTL, MaxTTL, Queue, SharedSessions and Push are filled in

	// Prepare creates the tables, or returns an error that says what is missing. A session's opening calls it when it finds no tables. Nil: they are not created.
	Prepare func(ctx context.Context) error

	// Prefix is what the IDs of this store's sessions begin with, for Notify to address this process. It may be empty.
	Prefix string

	// Attend makes the notifications of all elections heard from its return on, not only those for this process's sessions. It is called when somebody begins to
	// watch or to wait beside the queue. Nil: all are heard anyway, or none. An error means that they are not heard at present.
	Attend func(ctx context.Context) error

	Bound Bound // for connection-bound mode; nil: none

	Logger *slog.Logger // nil: silent
}

// A Bound ties sessions to something that ends by itself, such as a connection. While a session is the first in line for what a bound session holds, it looks
// every BoundPoll whether the tie is broken, and frees what the other held. Its methods may be called concurrently.
type Bound interface {
	// Tie ties a session that is about to be opened, and returns the number that names the tie to the database. It is not 0.
	Tie(ctx context.Context, session string) (int64, error)
	// Untie is called once when the session is over for this process. It does not block.
	Untie(session string)
	// Lost reports whether the session's tie is broken. It does not block. When one breaks, the Bound calls Reconsider.
	Lost(session string) bool
}

// BoundPoll is how often the first in line looks whether a holder's tie is broken.
const BoundPoll = 250 * time.Millisecond

// A Store is a driver.Store and a driver.Asker over an Engine.
type Store struct {
	engine Engine
	d      Dialect
	st     *statements
	opts   Options
	info   driver.Info
	log    *slog.Logger

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	workers sync.WaitGroup
	stir    chan struct{} // wakes the poller: there may be something to poll for

	damaged atomic.Bool // a table was missing: Prepare comes before the next session

	mu       sync.Mutex
	closed   bool
	pushing  bool
	sessions map[string]*session
	watches  map[string]map[*watch]struct{}
}

var (
	_ driver.Store = (*Store)(nil)
	_ driver.Asker = (*Store)(nil)
)

// New returns a store. It owns the engine: Close closes it. With a Dialect that has Notify, the engine's owner calls Pushing, Heard and Missed.
func New(engine Engine, d Dialect, opts Options) *Store {
	if d.Poll == 0 {
		d.Poll = time.Second
	}
	s := &Store{engine: engine, d: d, st: newStatements(d), opts: opts, info: opts.Info, log: opts.Logger, stir: make(chan struct{}, 1),
		sessions: make(map[string]*session), watches: make(map[string]map[*watch]struct{})}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.info.MinTTL, s.info.MaxTTL, s.info.Queue, s.info.SharedSessions = MinTTL, MaxTTL, true, true
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.workers.Go(s.poll)
	return s
}

// Info implements driver.Store.
func (s *Store) Info() driver.Info { return s.info }

// Open implements driver.Store.
func (s *Store) Open(ctx context.Context, member string, ttl time.Duration) (driver.Session, error) {
	if err := driver.CheckName("member", member); err != nil {
		return nil, err
	}
	if ttl < MinTTL || ttl > MaxTTL {
		return nil, fmt.Errorf("%w: TTL %v is outside the bounds of store %s: choose one from %v to %v", driver.ErrInvalid, ttl, s.d.Name, MinTTL, MaxTTL)
	}
	id := s.opts.Prefix + rand.Text()
	var bound int64
	if s.opts.Bound != nil {
		var err error
		if bound, err = s.opts.Bound.Tie(ctx, id); err != nil {
			return nil, fmt.Errorf("%s: tie a session to the connection: %w", s.d.Name, err)
		}
	}
	var err error
	if s.damaged.Swap(false) && s.opts.Prepare != nil {
		// The table of sessions may be there all the same, and sessions without the others would be lost one after the other.
		err = s.opts.Prepare(ctx)
		s.damaged.CompareAndSwap(false, err != nil)
	}
	if err == nil {
		err = s.insert(ctx, id, member, ttl, bound)
	}
	if errors.Is(err, ErrNoTables) && s.opts.Prepare != nil {
		if err = s.opts.Prepare(ctx); err == nil {
			err = s.insert(ctx, id, member, ttl, bound)
		}
	}
	var session *session
	if err == nil {
		session, err = s.add(id, member, ttl)
	}
	if err != nil {
		if s.opts.Bound != nil {
			s.opts.Bound.Untie(id)
		}
		return nil, err
	}
	return session, nil
}

func (s *Store) insert(ctx context.Context, id, member string, ttl time.Duration, bound int64) error {
	var script []Stmt
	for _, check := range s.d.OpenCheck {
		script = append(script, Stmt{SQL: check})
	}
	script = append(script, s.st.version.with(), s.st.open.with(id, member, ttl.Microseconds(), int64(SchemaVersion), bound))
	answer, err := s.run(ctx, Script{Name: "open a session", Lease: ttl, Stmts: script})
	if err != nil {
		return err
	}
	if n := len(answer); len(answer[n-1]) == 0 {
		return s.CheckVersion(answer[n-2])
	}
	return nil
}

// CheckVersion returns an error that wraps driver.ErrInvalid unless rows, the answer to SELECT max(version) FROM meta, has SchemaVersion.
func (s *Store) CheckVersion(rows []Row) error { return CheckVersion(s.d, rows) }

// CheckVersion is the function behind the method, for those who have no Store yet.
func CheckVersion(d Dialect, rows []Row) error {
	if len(rows) != 1 || rows[0][0] == nil {
		return fmt.Errorf("%s: %w: table %s says no version: it was made by something else, or damaged: restore its one row (version %d), or drop the tables and have them created anew",
			d.Name, driver.ErrInvalid, d.Table("meta"), SchemaVersion)
	}
	if v := number(rows[0][0]); v != SchemaVersion {
		return fmt.Errorf("%s: %w: the tables have version %d, as %s says, and this program knows version %d: use a program of the release that made them, or another schema",
			d.Name, driver.ErrInvalid, v, d.Table("meta"), SchemaVersion)
	}
	return nil
}

// Get implements driver.Store.
func (s *Store) Get(ctx context.Context, election string) (driver.Record, error) {
	st, err := s.get(ctx, election)
	if err != nil {
		return driver.Record{}, err
	}
	return st.Record, nil
}

func (s *Store) get(ctx context.Context, election string) (state, error) {
	if err := driver.CheckName("election", election); err != nil {
		return state{}, err
	}
	answer, err := s.run(ctx, Script{Name: "get", ReadOnly: true, Stmts: []Stmt{s.st.get.with(election)}})
	if err != nil {
		return state{}, err
	}
	if len(answer[0]) == 0 {
		return state{Record: driver.Record{Election: election}}, nil
	}
	return s.parse(answer[0][0])
}

// List implements driver.Store.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		if !utf8.ValidString(prefix) {
			yield(driver.Record{}, fmt.Errorf("%w: prefix %q is not UTF-8: encode it as UTF-8", driver.ErrInvalid, prefix))
			return
		}
		for after := ""; ; {
			end := following(prefix)
			query := s.st.list
			if end != "" {
				query = s.st.listTo
			}
			stmt := query.with(after, prefix, int64(pageSize), end)
			answer, err := s.run(ctx, Script{Name: "list", ReadOnly: true, Stmts: []Stmt{stmt}})
			if err != nil {
				yield(driver.Record{}, err)
				return
			}
			for _, row := range answer[0] {
				st, err := s.parse(row)
				record := st.Record
				if err != nil {
					record = driver.Record{Election: record.Election}
				}
				if !yield(record, err) || err != nil && !errors.Is(err, driver.ErrCorrupt) {
					return
				}
				after = text(row[0])
			}
			if len(answer[0]) < pageSize {
				return
			}
		}
	}
}

// following returns the least string that is greater than all that start with prefix, in the order of bytes, which in UTF-8 is that of
// code points. Empty: there is none.
func following(prefix string) string {
	for prefix != "" {
		r, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		switch {
		case r == 0xD7FF: // surrogates follow
			return prefix + "\uE000"
		case r < utf8.MaxRune:
			return prefix + string(r+1)
		}
	}
	return ""
}

// Ask implements driver.Asker.
func (s *Store) Ask(ctx context.Context, election string, token uint64) error {
	if err := driver.CheckName("election", election); err != nil {
		return err
	}
	if token == 0 || token > 1<<63-1 {
		return driver.ErrNotHeld
	}
	answer, err := s.run(ctx, Script{Name: "ask", Stmts: all(s.st.ask, election, int64(token))})
	if err == nil && len(answer[0]) == 0 {
		err = fmt.Errorf("%s: election %q is not held with token %d: %w", s.d.Name, election, token, driver.ErrNotHeld)
	}
	return err
}

// Close implements driver.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	open := s.sessions
	s.sessions = map[string]*session{}
	s.mu.Unlock()
	s.cancel()
	for _, session := range open {
		session.end(errClosed)
	}
	s.workers.Wait()
	return s.engine.Close()
}

// spawn runs f in the background, unless the store is closed; Close waits for it.
func (s *Store) spawn(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.workers.Go(f)
	}
}

// run runs a script and names it in the error.
func (s *Store) run(ctx context.Context, script Script) ([][]Row, error) {
	if s.ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %s: %w", s.d.Name, script.Name, errClosed)
	}
	answer, err := s.engine.Run(ctx, script)
	switch {
	case err == nil && len(answer) != len(script.Stmts):
		err = fmt.Errorf("the engine answered %d of %d statements", len(answer), len(script.Stmts))
	case err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()):
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", s.d.Name, script.Name, err)
	}
	return answer, nil
}

// free ends a session at the store and hands on what it held; unless always, only if it has expired or lost its tie. It reports whether there was something to end.
func (s *Store) free(ctx context.Context, session string, always bool) (bool, error) {
	first := s.st.lapsed
	if always {
		first = s.st.close
	}
	script := []Stmt{first.with(session)}
	if s.d.RowLocks {
		script = append(script, s.st.lockAll.with(session))
	}
	at := len(script)
	script = append(script, all(s.st.inherit, session)...)
	script = append(script, s.st.dropAll.with(session))
	answer, err := s.run(ctx, Script{Name: "end a session", Stmts: script})
	if err != nil {
		return false, err
	}
	s.moved(answer[at])
	return len(answer[0]) > 0, nil
}

// Rehearsal returns scripts that change nothing, for they name a session that does not exist, but have the texts of those that a handover consists of, and of a
// renewal, which is Urgent. An engine may run them on a new connection, so that the database has planned them by the time a handover, or a lease, waits for it.
func Rehearsal(d Dialect) []Script {
	st := newStatements(d)
	return []Script{
		{Name: "rehearse", Stmts: append([]Stmt{st.lockTerm.with("", "", int64(0))}, all(st.transfer, "", "", int64(0))...)},
		{Name: "rehearse", ReadOnly: true, Stmts: []Stmt{st.get.with("")}},
		{Name: "rehearse", Urgent: true, Stmts: []Stmt{st.renew.with(""), st.holds.with(""), st.places.with(""), st.namesake.with("", ""),
			st.overdue.with(grace.Microseconds()), st.due.with("", int64(0)), st.vacated.with("", int64(0))}},
	}
}

// moved tells those of this process who wait what a script has changed: faster than a notification, and the only way where there is none.
func (s *Store) moved(rows []Row) {
	for _, row := range rows {
		s.Heard(Event{Kind: Given, Election: text(row[0]), Session: text(row[1]), Token: uint64(number(row[2]))})
	}
}
