package fence

import (
	"context"
	"database/sql"
	"fmt"
)

// Schema returns the statements that create the table of the bars, for those who may not let a program do so: on PostgreSQL a transaction, with BEGIN and COMMIT. They
// change nothing where the table exists.
func (g *Guard) Schema() string {
	if g.dialect == Postgres {
		return "BEGIN;\n" + g.create + "COMMIT;\n"
	}
	return g.create
}

// CreateSQL returns the statements of Schema without BEGIN and COMMIT, for a transaction of the caller's, such as that of a migration.
func (g *Guard) CreateSQL() string { return g.create }

// Exists is a query without parameters for one boolean: whether the table of the bars exists.
func (g *Guard) Exists() string { return g.exists }

// CreateTable creates the table of the bars, and on PostgreSQL its schema, unless it exists; then it needs no privilege to create anything.
// Several processes may call it at once.
func (g *Guard) CreateTable(ctx context.Context, db *sql.DB) error {
	var exists bool
	if err := db.QueryRowContext(ctx, g.exists).Scan(&exists); err != nil {
		return fmt.Errorf("looking for table %s: %w", g.fence, g.remedy(err))
	}
	if exists {
		return nil
	}
	_, err := db.ExecContext(ctx, g.create) // at once, which PostgreSQL makes a transaction
	return g.ExplainCreate(err)
}
