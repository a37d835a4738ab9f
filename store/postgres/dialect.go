package postgres

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
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
		Greatest: "greatest",
		RowLocks: true,
		Gate: func(election string) string { // with the key of package fence
			return "(SELECT pg_advisory_xact_lock(hashtextextended(" + election + ", hashtextextended(" + literal(qualified(schema, "elections")) + ", 0)))) IS NOT NULL"
		},
		Notify: func(kind sqlstore.Kind, c sqlstore.Change) string {
			payload := func(proof string) string {
				return "'" + string(kind) + " ' || coalesce(" + c.Session + ", '') || ' ' || " + c.Token + " || " + proof + " || " + c.Election
			}
			holder := "CASE WHEN " + c.Session + " IS NOT NULL THEN pg_notify(" + literal(channel(schema)+".") + " || left(" + c.Session + ", " + strconv.Itoa(prefixLen) + "), " +
				payload("' ' || "+c.AcquiredAt+" || ' ' || "+c.Nonce+" || ' '") + ") END"
			all := "pg_notify(" + literal(channel(schema)) + ", " + payload("' 0 0 '") + ")"
			switch kind {
			case sqlstore.Given:
				return holder + " IS NULL, " + all + " IS NULL"
			case sqlstore.Asked:
				return holder + " IS NULL"
			}
			return all + " IS NULL"
		},
		Untied: `NOT EXISTS (SELECT FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND (l.classid::bigint << 32 | l.objid::bigint) = s.bound)`,
		Text:   `text COLLATE "C"`,
		Bytes:  "bytea",
		Serial: "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
	}
}

// prefixLen is the length of what a store's session IDs begin with. Its channel ends with it.
const prefixLen = 12

// newPrefix returns a prefix that no other store has.
func newPrefix() string { return rand.Text()[:prefixLen-1] + "." }

// channel returns the name of the channel on which all changes of holders are notified. With a dot and a store's prefix it is that store's own: what concerns
// its sessions. So a handover wakes one process, and those who watch. Names have at most 63 bytes, and are the database's, not the schema's.
func channel(schema string) string {
	if schema == DefaultSchema {
		return "tenure"
	}
	if name := "tenure." + schema; len(name)+1+prefixLen <= 63 {
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
