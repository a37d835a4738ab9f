package cli

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/fence"
	"github.com/gotenure/tenure/store/postgres"
)

func init() {
	kind := &storeKind{
		example: "postgres://USER@HOST/DATABASE",
		remedy:  "check that the server is running and accepts this user there: try psql with the same URL",
		open: func(ctx context.Context, raw string) (driver.Store, error) {
			return postgres.OpenWith(ctx, raw, warnings())
		},
		create:   createPostgres,
		schema:   schemaPostgres,
		database: postgresDatabase,
	}
	storeKinds["postgres"], storeKinds["postgresql"] = kind, kind
}

func createPostgres(ctx context.Context, raw string) error {
	if err := postgres.Init(ctx, raw); err != nil {
		return err
	}
	db, guard, err := postgresDatabase(ctx, raw)
	if err != nil {
		return err
	}
	defer db.Close()
	return guard.CreateTable(ctx, db)
}

func schemaPostgres(raw string) (string, error) {
	_, schema, err := splitPostgres(raw)
	if err != nil {
		return "", err
	}
	guard, err := fence.New(fence.Config{Dialect: fence.Postgres, Namespace: schema})
	if err != nil {
		return "", err
	}
	return postgres.Schema(schema) + "\n-- The guard's table.\n" + guard.Schema(), nil
}

// postgresDatabase opens the database for the guard, whose table must exist: who may write to it may often not create it.
func postgresDatabase(_ context.Context, raw string) (*sql.DB, *fence.Guard, error) {
	connection, schema, err := splitPostgres(raw)
	if err != nil {
		return nil, nil, err
	}
	config, err := pgxpool.ParseConfig(connection)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: a parameter of the connection is wrong: %w", driver.ErrInvalid, err)
	}
	guard, err := fence.New(fence.Config{Dialect: fence.Postgres, Namespace: schema})
	if err != nil {
		return nil, nil, err
	}
	// One check is no reason to prepare a statement, which a pooler in transaction mode would give to others.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	return stdlib.OpenDB(*config.ConnConfig), guard, nil
}

// splitPostgres takes the parameters of package postgres out of a URL.
func splitPostgres(raw string) (connection, schema string, err error) {
	u, err := url.Parse(raw)
	if err != nil {
		return "", "", fmt.Errorf("%w: store URL cannot be parsed: percent-encode what is not a letter or a digit in user and password, and check the port", driver.ErrInvalid)
	}
	query := u.Query()
	schema = query.Get("schema")
	for _, own := range []string{"schema", "create", "bound", "poll"} {
		query.Del(own)
	}
	u.RawQuery = query.Encode()
	return u.String(), schema, nil
}
