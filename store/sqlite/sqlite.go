// Package sqlite keeps elections in one SQLite file, shared by processes of one machine.
//
// It needs no server, which makes it the store to begin with, and the right one where all candidates run on one machine. It is not for several
// machines: a file on a network file system is refused. Then use store/postgres or another.
//
//	store, err := sqlite.Open(ctx, "sqlite:///var/lib/app/tenure.db")
//
// What it does:
//
//   - Every commit is on the disk before it is reported, so a token is never used twice, not even across a power cut.
//   - Renewals have a connection of their own, and one statement renews all that a member holds.
//   - A waiting member learns of a vacancy within 50 ms: on Linux the kernel tells of writes to the file, elsewhere it is looked at every 20 ms.
//   - Expiry is decided by the machine's clock since its start: it counts suspended time, and nobody can set it (Linux; elsewhere the wall clock).
//     After the machine was restarted every election is vacant at once.
//   - When the file is deleted or replaced while it is in use, all sessions in it are lost, which every member notices at its next renewal or sooner. On Linux
//     a member joins in the new file only when no process has the old one open any more.
//
// What to mind:
//
//   - A process that is stopped (SIGSTOP, a debugger, a frozen cgroup) in the middle of a write keeps all others from writing until it goes on or ends:
//     nobody leads then once their leases have run out. The write takes about as long as the disk needs for a sync, once per renewal, so this is
//     rare; errors name the process.
//   - Whoever else opens the file in the same process must use the same SQLite library (github.com/ncruces/go-sqlite3): POSIX locks, which other
//     libraries use, vanish when anything in the process closes the file.
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/sqlstore"
)

// Name is the driver's name, as in its URLs.
const Name = "sqlite"

// Options are the choices of New. The zero value is the usual one.
type Options struct {
	// NoCreate makes a missing file, or a file without the tables, an error.
	NoCreate bool

	// AllowNetwork admits a file on a file system that other machines may have mounted too. All members must run on one machine all the same: two machines
	// that use one file do not see each other's members, and destroy it.
	AllowNetwork bool

	// Logger hears what an operator should know: the file was deleted or replaced, the file system is of a doubtful kind. Nil: silent.
	Logger *slog.Logger
}

// A Store is a driver.Store and a driver.Asker on a file.
type Store struct {
	*sqlstore.Store
	engine *engine
	name   string // for errors, with the path
}

var (
	_ driver.Store = (*Store)(nil)
	_ driver.Asker = (*Store)(nil)
)

// New opens the file at path, and creates it (mode 0600) and the tables in it when they do not exist. The directory has to exist. Errors that
// trying again cannot mend wrap driver.ErrInvalid: a missing permission, a file that is no database, tables of another version.
func New(ctx context.Context, path string, opts Options) (*Store, error) {
	if path == "" {
		return nil, fmt.Errorf("%w: the path of the SQLite file is empty: name a file", driver.ErrInvalid)
	}
	given := path
	path, err := filepath.Abs(given)
	if err != nil {
		return nil, fmt.Errorf("sqlite: %w: the working directory of the relative path %q cannot be found (%w): name an absolute path", driver.ErrInvalid, given, err)
	}
	log := opts.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	info := driver.Info{
		Name:  Name,
		Token: "the table tenure_token in the file",
		Clock: clockName,
		Caveats: []string{
			"All members must run on the machine that has the file.",
			"A process that is stopped in the middle of a write keeps all others from writing until it goes on or ends.",
			"Whoever deletes or replaces the file while it is in use ends all sessions in it.",
		},
	}
	d := dialect(path)
	name, certain, err := fileSystem(filepath.Dir(path))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", d.Name, unusable(path, err))
	case certain && !opts.AllowNetwork:
		return nil, fmt.Errorf("%s: %w: the file is on a network file system (%s), which other machines may use too: name a file on a local disk, use a store with a server, "+
			"or add network=allow if all members run on this machine", d.Name, driver.ErrInvalid, name)
	case name != "":
		info.Caveats = append(info.Caveats, "The file is on a file system ("+name+") that other machines may have mounted too: they must not use it.")
		log.Warn("the SQLite file is on a file system that other machines may have mounted too; they must not use it", "file", path, "file system", name)
	}
	e := &engine{path: path, opts: opts, log: log, turn: make(chan struct{}, 1), closed: make(chan struct{})}
	e.turn <- struct{}{}
	if _, err := e.database(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", d.Name, err)
	}
	return &Store{sqlstore.New(e, d, sqlstore.Options{Info: info, Prepare: e.prepare, Logger: opts.Logger}), e, d.Name}, nil
}

// Open implements driver.Store.
func (s *Store) Open(ctx context.Context, member string, ttl time.Duration) (driver.Session, error) {
	for {
		d, err := s.engine.database(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: open a session: %w", s.name, err)
		}
		switch err := d.settle(ctx); {
		case err == nil:
			return s.Store.Open(ctx, member, ttl)
		case !errors.Is(err, errReplaced) || ctx.Err() != nil:
			return nil, fmt.Errorf("%s: open a session: %w", s.name, err)
		}
	}
}

// DefaultPath returns the file that the command uses unless told otherwise, tenure/tenure.db in the user's state directory ($XDG_STATE_HOME, else
// ~/.local/state), and creates its directory, for this user alone, when it does not exist.
func DefaultPath() (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) { // the specification says to ignore it then
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("%w: where the default SQLite file should be: %w: set HOME or XDG_STATE_HOME, or name a store", driver.ErrInvalid, err)
		}
		state = filepath.Join(home, ".local", "state")
	}
	dir := filepath.Join(state, "tenure")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("directory of the default SQLite file: %w", unusable(dir, err))
	}
	return filepath.Join(dir, "tenure.db"), nil
}
