package sqlite

import (
	"context"
	"strings"

	"github.com/gotenure/tenure/store/sqlstore"
	"github.com/ncruces/go-sqlite3"
	"golang.org/x/sys/unix"
)

// OnFileSystem makes files be on a file system of the given kind until the func it returns is called.
func OnFileSystem(kind int64) (restore func()) {
	statfs = func(_ string, s *unix.Statfs_t) error { s.Type = kind; return nil }
	return func() { statfs = unix.Statfs }
}

// Kinds for OnFileSystem.
const (
	NFS  = unix.NFS_SUPER_MAGIC
	FUSE = unix.FUSE_SUPER_MAGIC
)

// Trace has every statement that the store sends on its connection for renewals appended to list.
func (s *Store) Trace(list *[]string) error {
	d, err := s.engine.database(context.Background())
	if err != nil {
		return err
	}
	_, err = d.renew.do(context.Background(), func(_ context.Context, c *connection) ([][]sqlstore.Row, error) {
		return nil, c.db.Trace(sqlite3.TRACE_STMT, func(_ sqlite3.TraceEvent, statement, _ any) error {
			if statement, ok := statement.(*sqlite3.Stmt); ok {
				*list = append(*list, strings.TrimSpace(statement.SQL()))
			}
			return nil
		})
	})
	return err
}
