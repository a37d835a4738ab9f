package postgres

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/gotenure/tenure/store/sqlstore"
)

// now is the database's clock at the start of the statement, not of the transaction, in microseconds.
const now = `(extract(epoch FROM statement_timestamp()) * 1000000)::bigint`

func dialect(schema string) sqlstore.Dialect {
	return sqlstore.Dialect{
		Name:     "postgres",
		Table:    func(name string) string { return qualified(schema, name) },
		Now:      now,
		Token:    func(string) string { return "nextval(" + literal(qualified(schema, "token")) + ")" },
		RowLocks: true,
		Notify: func(kind sqlstore.Kind, election, session, token string) string {
			return "pg_notify(" + literal(channel(schema)) + ", '" + string(kind) + " ' || coalesce(" + session + ", '') || ' ' || " + token + " || ' ' || " + election + ")"
		},
		Text:   `text COLLATE "C"`,
		Bytes:  "bytea",
		Serial: "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
	}
}

// channel returns the name of the channel of notifications, which is the database's. It has at most 63 bytes.
func channel(schema string) string {
	if schema == DefaultSchema {
		return "tenure"
	}
	if name := "tenure." + schema; len(name) <= 63 {
		return name
	}
	sum := sha256.Sum256([]byte(schema))
	return "tenure." + hex.EncodeToString(sum[:16])
}

func qualified(schema, name string) string { return quoted(schema) + "." + name }

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

// literal quotes a string. An E string means the same whatever standard_conforming_strings is.
func literal(s string) string {
	if !strings.Contains(s, `\`) {
		return "'" + strings.ReplaceAll(s, "'", "''") + "'"
	}
	return " E'" + strings.NewReplacer("'", "''", `\`, `\\`).Replace(s) + "'"
}
