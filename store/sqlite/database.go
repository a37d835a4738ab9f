package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/sqlstore"
)

// A database is an open file. When another file, or none, is found at its path, it is over and another takes its place.
type database struct {
	given string // the path as the user gave it, absolute
	path  string // without symbolic links

	renew *connection // for renewals alone, so that they wait for no other call of this process
	work  *connection // for other writes, which queue here instead of contending for the lock
	read  *connection // never writes, so that its data_version moves with every commit of anybody

	files   [3]fs.FileInfo // the file, its log and the log's index, as opened
	closing chan struct{}
	until   atomic.Int64 // when the last session of this process expires that was opened or renewed in it, in nanoseconds since started
	settled atomic.Bool  // no process has a file open any more that was at this path before
}

// suffixes of the three files that make one database while it is open.
var suffixes = [3]string{"", "-wal", "-shm"}

// openDatabase opens the file at given, an absolute path, and creates it, and the tables in it, unless told not to.
func openDatabase(ctx context.Context, given string, o Options) (*database, error) {
	d, err := tryDatabase(ctx, given, o)
	if err != nil && !errors.Is(err, driver.ErrInvalid) && ctx.Err() == nil {
		if holders := whoHasDeleted(given); len(holders) > 0 {
			err = fmt.Errorf("%w; %s still has files open that were deleted or replaced, and closes them within a TTL", err, holders[0])
		}
	}
	return d, err
}

func tryDatabase(ctx context.Context, given string, o Options) (opened *database, err error) {
	path, err := create(given, o)
	if err != nil {
		return nil, err
	}
	if err := parted(ctx, path); err != nil {
		return nil, err
	}
	d := &database{given: given, path: path, closing: make(chan struct{})}
	defer func() {
		if err != nil {
			d.close(errors.Is(err, errReplaced) || whoMixes(path) != "")
		}
	}()
	for _, c := range []**connection{&d.renew, &d.work, &d.read} {
		if *c, err = openConnection(ctx, path); err != nil {
			return nil, err
		}
		if c != &d.renew {
			continue
		}
		// From here on no other process removes the log when it closes.
		if err = d.prepare(ctx, o.NoCreate, false); err == nil {
			d.files, err = stat(given)
		}
		if err != nil {
			return nil, err
		}
	}
	// A log that is new must not vanish in a power cut with the commits in it.
	if err := syncDirectory(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("sync of the directory: %w", err)
	}
	if !d.same() {
		return nil, fmt.Errorf("%w while it was being opened", errReplaced)
	}
	return d, nil
}

// create makes sure that the files exist, with the mode that SQLite would not give them, and returns the path without symbolic links.
func create(given string, o Options) (string, error) {
	path, err := filepath.EvalSymlinks(given)
	if errors.Is(err, fs.ErrNotExist) {
		var dir string
		dir, err = filepath.EvalSymlinks(filepath.Dir(given))
		path = filepath.Join(dir, filepath.Base(given))
	}
	if err != nil {
		return "", unusable(given, err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if o.NoCreate {
			return "", fmt.Errorf("%w: the file does not exist: create it first, with tenure store init, or allow it to be created", driver.ErrInvalid)
		}
		file, err = createFile(path)
	}
	if err != nil {
		return "", unusable(path, err)
	}
	info, err := file.Stat()
	file.Close()
	switch {
	case err != nil:
		return "", unusable(path, err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%w: it is no file (mode %v): name a file", driver.ErrInvalid, info.Mode())
	}
	// SQLite makes the log with the file's mode, being asked to, but the log's index with what the umask leaves.
	index, err := os.OpenFile(path+"-shm", os.O_RDWR|os.O_CREATE|os.O_EXCL, info.Mode().Perm())
	if errors.Is(err, fs.ErrExist) {
		return path, nil
	}
	if err != nil {
		return "", unusable(path, err)
	}
	defer index.Close()
	if err := index.Chmod(info.Mode().Perm()); err != nil {
		return "", unusable(path, err)
	}
	return path, nil
}

// createFile makes the file, or opens it if another process was faster.
func createFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) // created where a symbolic link leads
	}
	if err != nil {
		return nil, err
	}
	// A log and an index that are there are of another file, which was deleted or moved, and may be in use. SQLite would delete the log, but go on with
	// the index, and those who have the other file open would read and write as this one's index says.
	for _, suffix := range suffixes[1:] {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(err, file.Close())
		}
	}
	return file, nil
}

// parted waits until the log at the path is not in use any more with another file, which was there before. Its members take their log away when they
// notice, at once unless they are stopped.
func parted(ctx context.Context, path string) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		holder := whoMixes(path)
		if holder == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s has the log %s-wal open, but not the file: a member whose file was replaced takes its log away as soon as it runs again, "+
				"and whatever else reads the log has to end: %w", holder, path, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// stat identifies the files at the path.
func stat(given string) (files [3]fs.FileInfo, err error) {
	for i, suffix := range suffixes {
		if files[i], err = os.Stat(given + suffix); err != nil {
			break
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		// A symbolic link: log and index are beside the file itself.
		path, failed := filepath.EvalSymlinks(given)
		if failed != nil || path == given {
			return files, err
		}
		return stat(path)
	}
	return files, err
}

// errReplaced says that another file, or none, is at the path of one that is open.
var errReplaced = errors.New("the file was deleted or replaced")

// same reports whether the files at the path are those that are open. SQLite does not notice when they are not, and goes on with files that no
// other process will ever see.
func (d *database) same() bool {
	files, err := stat(d.given)
	if err != nil {
		return false
	}
	for i := range files {
		if !os.SameFile(files[i], d.files[i]) {
			return false
		}
	}
	return true
}

// disown leaves a file that is not at the path any more in good order: with all that was committed, since it is parted from its log. The log and its
// index must not be taken for those of the file that is at the path now.
func (d *database) disown() {
	info, err := os.Stat(d.path)
	if err == nil && os.SameFile(info, d.files[0]) {
		return // only the log was deleted; others may use the file with a new one already
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = d.work.run(ctx, sqlstore.Script{ReadOnly: true, Stmts: []sqlstore.Stmt{{SQL: "PRAGMA wal_checkpoint(PASSIVE)"}}}) // the best that can be done
	if err != nil {
		return
	}
	for i, suffix := range suffixes[1:] {
		if info, err := os.Stat(d.path + suffix); err == nil && os.SameFile(info, d.files[i+1]) {
			_ = os.Remove(d.path + suffix) // else the new file is unreadable until all processes have closed the old one
		}
	}
}

// close stops the connections and waits for them, for a few seconds at most. abandon: the files at the path are not this database's.
func (d *database) close(abandon bool) {
	close(d.closing)
	timer := time.NewTimer(3 * time.Second)
	defer timer.Stop()
	for _, c := range []*connection{d.renew, d.work, d.read} {
		if c == nil {
			continue
		}
		c.abandon.Store(abandon)
		c.stop()
		select {
		case <-c.stopped:
		case <-timer.C:
			timer.Reset(0) // a disk hangs: whatever does not stop at once is left behind
		}
	}
}

// prepare checks the version of the tables, and creates what is missing unless told not to. again: although all seems to be there.
func (d *database) prepare(ctx context.Context, noCreate, again bool) error {
	_, err := d.renew.do(ctx, func(ctx context.Context, c *connection) ([][]sqlstore.Row, error) {
		return nil, c.withContext(ctx, prepare(ctx, c, noCreate, again))
	})
	return err
}

func prepare(ctx context.Context, c *connection, noCreate, again bool) (err error) {
	versions := dialect("")
	versions.Name = "tables"
	boot, err := bootID()
	if err != nil {
		return fmt.Errorf("which start of the machine this is: %w", err)
	}
	// Most often everything is there, and nothing needs to be written.
	rows, err := c.query("SELECT (SELECT max(version) FROM tenure_meta), (SELECT count(last) FROM tenure_token), (SELECT count(*) FROM tenure_clock WHERE boot = ?1)", boot)
	missing := errors.Is(explain(c.path, err), sqlstore.ErrNoTables)
	if err != nil && !missing {
		return err
	}
	if !missing {
		version := rows[0][:1]
		if err := sqlstore.CheckVersion(versions, []sqlstore.Row{version}); err != nil {
			return err
		}
		if rows[0][1] == int64(1) && rows[0][2] == int64(1) && !again {
			return nil
		}
	}
	if (missing || again) && noCreate {
		return fmt.Errorf("%w: the file has no tables of a store: create them first, with tenure store init, or allow them to be created", driver.ErrInvalid)
	}

	if _, err := c.query("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	defer func() {
		if err != nil && !c.db.GetAutocommit() {
			c.db.SetInterrupt(context.Background())
			_, failed := c.query("ROLLBACK")
			err = errors.Join(err, failed)
		}
	}()
	// Another process may have been faster, and newer.
	if rows, err := c.query("SELECT max(version) FROM tenure_meta"); err == nil {
		if err := sqlstore.CheckVersion(versions, rows); err != nil {
			return err
		}
	}
	for _, statement := range schema() {
		if _, err := c.query(statement); err != nil {
			return err
		}
	}
	base := newBase()
	if _, err := c.query("INSERT INTO tenure_clock (boot, base) SELECT ?1, ?2 WHERE NOT EXISTS (SELECT 1 FROM tenure_clock)", boot, base); err != nil {
		return err
	}
	restarted, err := c.query("UPDATE tenure_clock SET boot = ?1, base = ?2 WHERE boot <> ?1 RETURNING base", boot, base)
	if err != nil {
		return err
	}
	if len(restarted) > 0 {
		// The machine was restarted, and no process that had a session is left.
		if _, err := c.query("UPDATE tenure_sessions SET expires_at = ?1 - 1 WHERE expires_at >= ?1", base+sinceBoot()); err != nil {
			return err
		}
	}
	_, err = c.query("COMMIT")
	return err
}

// follow moves the times in the file along when somebody has set the wall clock. Leases then last as long as they would have, and those who compare
// the times with the wall clock, as package fence does, are right again.
func follow(ctx context.Context, c *connection) error {
	const noticeable = 100 * 1000 // µs
	rows, err := c.query("SELECT base FROM tenure_clock")
	if err != nil || len(rows) != 1 {
		return err
	}
	target := newBase()
	if base, _ := rows[0][0].(int64); abs(target-base) < noticeable {
		return nil
	}
	_, err = c.transact(ctx, sqlstore.Script{Stmts: []sqlstore.Stmt{
		// by is next to 0 when another process was faster.
		{SQL: `UPDATE tenure_sessions SET opened_at = opened_at + by, expires_at = expires_at + by
FROM (SELECT ?1 - base AS by FROM tenure_clock)`, Args: []any{target}},
		{SQL: "UPDATE tenure_clock SET base = ?1", Args: []any{target}},
	}})
	return err
}

func abs(v int64) int64 {
	if v < 0 {
		return -v
	}
	return v
}

// lease notes that a session of this process is being opened or renewed.
func (d *database) lease(ttl time.Duration) {
	until := int64(time.Since(started) + ttl)
	for {
		if old := d.until.Load(); old >= until || d.until.CompareAndSwap(old, until) {
			return
		}
	}
}

// leased returns how long it takes until no member of this process relies on its session any more.
func (d *database) leased() time.Duration {
	return time.Duration(d.until.Load()) - time.Since(started)
}

// started is when times within this process count from.
var started = time.Now()

// version returns SQLite's data_version.
func (d *database) version(ctx context.Context) (int64, error) {
	rows, err := d.read.run(ctx, sqlstore.Script{ReadOnly: true, Stmts: []sqlstore.Stmt{{SQL: "PRAGMA data_version"}}})
	if err != nil {
		return 0, err
	}
	v, _ := rows[0][0][0].(int64)
	return v, nil
}

// settle waits until no process has a file open that was at the path before. Its leader may not know yet that all is lost, so nobody may become a member
// in the new file before.
func (d *database) settle(ctx context.Context) error {
	if d.settled.Load() {
		return nil
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if !d.same() {
			return errReplaced
		}
		holders := whoHasDeleted(d.path)
		if len(holders) == 0 {
			d.settled.Store(true)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the file is new, and %s still has the one open that was deleted or replaced: its members give up by themselves within a TTL, "+
				"unless it is stopped, then resume or end it: %w", holders[0], context.Cause(ctx))
		case <-tick.C:
		}
	}
}
