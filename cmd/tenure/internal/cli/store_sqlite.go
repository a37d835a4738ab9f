package cli

import (
	"context"
	"database/sql"
	"net/url"
	"path/filepath"

	"github.com/ncruces/go-sqlite3"
	sqlitesql "github.com/ncruces/go-sqlite3/driver"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/fence"
	"github.com/gotenure/tenure/store/sqlite"
)

func init() {
	storeKinds["sqlite"] = &storeKind{
		example: "sqlite:FILE",
		open: func(ctx context.Context, raw string) (driver.Store, error) {
			return sqlite.OpenWith(ctx, raw, warnings())
		},
		file: func(raw string) (string, error) {
			path, opts, err := sqlite.ParseURL(raw)
			if opts.NoCreate {
				path = ""
			}
			return path, err
		},
		create:   createSQLite,
		schema:   schemaSQLite,
		database: sqliteDatabase,
	}
}

func createSQLite(ctx context.Context, raw string) error {
	path, opts, err := sqlite.ParseURL(raw)
	if err != nil {
		return err
	}
	opts.NoCreate = false // that is what the command is for
	store, err := sqlite.New(ctx, path, opts)
	if err != nil {
		return err
	}
	defer closeStore(store)
	db, _, err := openGuard(ctx, path)
	if err != nil {
		return err
	}
	return db.Close()
}

func schemaSQLite(raw string) (string, error) {
	if _, _, err := sqlite.ParseURL(raw); err != nil {
		return "", err
	}
	guard, err := fence.New(fence.Config{Dialect: fence.SQLite})
	if err != nil {
		return "", err
	}
	return sqlite.Schema() + "\n-- The guard's table.\n" + guard.Schema() + "\n", nil
}

// sqliteDatabase opens the file for the guard, whose table is made when it is missing: whoever may write the file may create it.
func sqliteDatabase(ctx context.Context, raw string) (*sql.DB, *fence.Guard, error) {
	path, opts, err := sqlite.ParseURL(raw)
	if err != nil {
		return nil, nil, err
	}
	// The store makes the file as it should be.
	store, err := sqlite.New(ctx, path, opts)
	if err != nil {
		return nil, nil, err
	}
	defer closeStore(store)
	return openGuard(ctx, path)
}

// openGuard opens an existing file for the guard. The store's own connections must not be the last to close it.
func openGuard(ctx context.Context, path string) (*sql.DB, *fence.Guard, error) {
	guard, err := fence.New(fence.Config{Dialect: fence.SQLite})
	if err != nil {
		return nil, nil, err
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, nil, err
	}
	// A transaction of the guard writes: BEGIN IMMEDIATE saves it from failing half way. The table's rows are on the disk when it says so.
	name := (&url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: "mode=rw&_txlock=immediate"}).String()
	db, err := sqlitesql.Open(name, func(c *sqlite3.Conn) error {
		return c.Exec("PRAGMA busy_timeout = 5000; PRAGMA synchronous = FULL")
	})
	if err != nil {
		return nil, nil, err
	}
	if err := guard.CreateTable(ctx, db); err != nil {
		db.Close()
		return nil, nil, err
	}
	return db, guard, nil
}
