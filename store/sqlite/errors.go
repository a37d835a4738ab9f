package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/sqlstore"
	"github.com/ncruces/go-sqlite3"
)

var errClosed = errors.New("store is closed")

// explain adds to SQLite's error what it means for the caller, and what to do. Callers say which file it is about.
func explain(path string, err error) error {
	var code sqlite3.ErrorCode
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), !errors.As(err, &code):
		return err
	case code == sqlite3.NOTADB:
		return fmt.Errorf("%w: %w: %s is no SQLite database: name another file, or move this one out of the way", driver.ErrInvalid, err, path)
	case code == sqlite3.CORRUPT:
		return fmt.Errorf("%w: %w: end all processes that use %s, and restore it from a copy or with the command sqlite3 %[3]s .recover", driver.ErrCorrupt, err, path)
	case code == sqlite3.FULL || noSpace(err):
		return fmt.Errorf("%w: free space on the file system of %s", err, path)
	case code == sqlite3.READONLY || code == sqlite3.CANTOPEN || code == sqlite3.PERM || code == sqlite3.AUTH:
		return fmt.Errorf("%w: %s", err, access(path))
	case code == sqlite3.ERROR && strings.Contains(err.Error(), "no such table: tenure_"):
		return fmt.Errorf("%w: %w", sqlstore.ErrNoTables, err)
	}
	var extended sqlite3.ExtendedErrorCode
	if !errors.As(err, &extended) || uint32(extended) == uint32(code) {
		return err
	}
	switch extended {
	case sqlite3.IOERR_WRITE, sqlite3.IOERR_FSYNC, sqlite3.IOERR_TRUNCATE, sqlite3.IOERR_SHMSIZE:
		// The library does not say why, and a full disk is the usual reason.
		return fmt.Errorf("%w (extended code %d): free space on the file system of %s; if there is some, the disk is failing", err, uint32(extended), path)
	}
	return fmt.Errorf("%w (extended code %d)", err, uint32(extended))
}

func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EFBIG) || errors.Is(err, errQuota)
}

// access describes what the process may do, for an error.
func access(path string) string {
	return fmt.Sprintf("user %d must be allowed to write the file, %[2]s-wal and %[2]s-shm, and their directory, on a file system that is mounted for writing", os.Getuid(), path)
}

// unusable is for errors of the operating system when the file is opened: what permissions forbid will not change by itself.
func unusable(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %w: %s", driver.ErrInvalid, err, access(path))
	case errors.Is(err, syscall.EISDIR):
		return fmt.Errorf("%w: %w: name a file", driver.ErrInvalid, err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w: create its directory first, or name another file", driver.ErrInvalid, err)
	}
	return err
}
