package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/sqlstore"
)

// DefaultSchema is the name of the schema unless another is chosen.
const DefaultSchema = "tenure"

// lockSchema makes processes that create the schema at the same moment do it one after the other, which IF NOT EXISTS does not. Package fence
// takes the same lock.
const lockSchema = `SELECT pg_advisory_xact_lock(hashtextextended('tenure schema', 0))`

// Schema returns the SQL that creates the schema of that name and all in it, for an administrator to run where programs may not. It does no harm where they exist.
// Text after it, in comments, says which privileges a program's role needs. name is taken as it is; empty means DefaultSchema.
func Schema(name string) string {
	if name == "" {
		name = DefaultSchema
	}
	var b strings.Builder
	fmt.Fprintf(&b, "-- Tenure's tables, version %d. Times are in microseconds since the epoch; the view %s shows them for people.\nBEGIN;\n", sqlstore.SchemaVersion, qualified(name, "status"))
	for _, statement := range schemaStatements(name) {
		b.WriteString(statement + ";\n")
	}
	b.WriteString("COMMIT;\n-- A role that takes part needs:\n--   " + strings.Join(grants(name, "ROLE"), "\n--   ") + "\n-- One that only looks needs USAGE on the schema, and SELECT on meta, sessions, elections and status. It must not read waiters.\n")
	return b.String()
}

func schemaStatements(name string) []string {
	d := dialect(name)
	statements := []string{
		lockSchema,
		`CREATE SCHEMA IF NOT EXISTS ` + quoted(name),
		`CREATE SEQUENCE IF NOT EXISTS ` + qualified(name, "token") + ` AS bigint CACHE 1 NO CYCLE`,
		// Tokens must not start again when the schema, or the sequence, is dropped and created anew. Guards remember.
		`SELECT setval(` + literal(qualified(name, "token")) + `, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM ` + qualified(name, "token") + ` WHERE NOT is_called`,
	}
	statements = append(statements, sqlstore.Tables(d, func(index string) string { return index })...)
	return append(statements,
		`CREATE OR REPLACE VIEW `+qualified(name, "status")+` AS
SELECT e.name AS election, CASE WHEN s.id IS NOT NULL THEN e.member END AS leader, s.id AS session, e.token,
  CASE WHEN s.id IS NOT NULL THEN e.value END AS value, CASE WHEN s.id IS NOT NULL THEN to_timestamp(e.acquired_at / 1e6) END AS acquired_at,
  to_timestamp(s.expires_at / 1e6) AS expires_at, (SELECT count(*) FROM `+d.Table("waiters")+` AS w WHERE w.election = e.name) AS waiting
FROM `+d.Table("elections")+` AS e LEFT JOIN `+d.Table("sessions")+` AS s ON s.id = e.session AND s.expires_at > `+now)
}

func grants(schema, role string) []string {
	return []string{
		"GRANT USAGE ON SCHEMA " + quoted(schema) + " TO " + role + ";",
		"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA " + quoted(schema) + " TO " + role + ";",
		"GRANT USAGE ON ALL SEQUENCES IN SCHEMA " + quoted(schema) + " TO " + role + ";",
	}
}

// prepare checks the schema, and creates what is missing when create is true. Its errors wrap driver.ErrInvalid when somebody has to
// do something first.
func prepare(ctx context.Context, conn *pgx.Conn, schema string, create bool) error {
	d := dialect(schema)
	var exists, use, tables, complete, mayCreateSchema, mayCreateTables bool
	var role, database string
	err := conn.QueryRow(ctx, `SELECT n.oid IS NOT NULL, coalesce(has_schema_privilege(n.oid, 'USAGE'), false),
  EXISTS (SELECT FROM pg_class AS c WHERE c.relnamespace = n.oid AND c.relname = 'meta'),
  (SELECT count(*) = 4 FROM pg_class AS c WHERE c.relnamespace = n.oid AND c.relname IN ('sessions', 'elections', 'waiters', 'token')),
  has_database_privilege(current_database(), 'CREATE'), coalesce(has_schema_privilege(n.oid, 'CREATE'), false), current_user::text, current_database()::text
FROM (SELECT 1) AS one LEFT JOIN pg_namespace AS n ON n.nspname = $1`, pgx.QueryExecModeExec, schema).
		Scan(&exists, &use, &tables, &complete, &mayCreateSchema, &mayCreateTables, &role, &database)
	if err != nil {
		return fmt.Errorf("postgres: look for schema %q: %w", schema, err)
	}
	invalid := func(format string, v ...any) error {
		return fmt.Errorf("postgres: %w: %s", driver.ErrInvalid, fmt.Sprintf(format, v...))
	}
	byAdministrator := `have an administrator run what "tenure store schema" prints`
	switch {
	case exists && !use:
		return invalid("role %q has no USAGE on schema %q: have its owner run %s", role, schema, grants(schema, quoted(role))[0])
	case tables:
		rows, err := conn.Query(ctx, `SELECT max(version)::bigint FROM `+d.Table("meta"), pgx.QueryExecModeExec)
		if err != nil {
			return explain(err, schema, role)
		}
		version, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (sqlstore.Row, error) { return row.Values() })
		if err != nil {
			return explain(err, schema, role)
		}
		if err := sqlstore.CheckVersion(d, version); err != nil || complete {
			return err
		}
		// Somebody has dropped a part.
	}
	switch {
	case !create && tables:
		return invalid("schema %q of database %q lacks a table or the sequence of tenure, and creating them was not asked for: run \"tenure store init\", or %s", schema, database, byAdministrator)
	case !create:
		return invalid("schema %q of database %q has no tables of tenure, and creating them was not asked for: run \"tenure store init\", or %s", schema, database, byAdministrator)
	case exists && !mayCreateTables:
		return invalid("schema %q of database %q lacks tables of tenure, and role %q may not create them: GRANT CREATE ON SCHEMA %s TO %s, or %s",
			schema, database, role, quoted(schema), quoted(role), byAdministrator)
	case !exists && !mayCreateSchema:
		return invalid("schema %q does not exist in database %q, and role %q may not create it: GRANT CREATE ON DATABASE %s TO %s, or %s",
			schema, database, role, quoted(database), quoted(role), byAdministrator)
	}
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		for _, statement := range schemaStatements(schema) {
			if _, err := tx.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("postgres: create schema %q: %w", schema, explain(err, schema, role))
	}
	return nil
}
