package fence

import (
	"strconv"
	"strings"
)

// expand fills in what stands in braces. Name and token are placeholders; on PostgreSQL casts give them their types wherever they stand.
func (g *Guard) expand(text, name, token string) string {
	if g.dialect == Postgres {
		name, token = "("+name+")::text", "("+token+")::bigint"
	}
	return strings.NewReplacer(
		"{namespace}", g.quotedNamespace(), "{fence}", g.fence, "{elections}", g.elections, "{sessions}", g.sessions,
		"{resource}", name, "{election}", name, "{token}", token, "{now}", g.now,
		"{key}", key(g.fence, name), "{term key}", key(g.elections, name),
		"{timeout}", strconv.FormatInt(g.idleTimeout.Milliseconds(), 10),
	).Replace(text)
}

// key is the advisory lock's of a name in a table. Package store/postgres makes the same of an election's.
func key(table, name string) string {
	return "hashtextextended(" + name + ", hashtextextended(" + literal(table) + ", 0))"
}

func (g *Guard) quotedNamespace() string { return quoted(g.namespace) }

func quoted(identifier string) string {
	return `"` + strings.ReplaceAll(identifier, `"`, `""`) + `"`
}

// literal quotes a string. An E string means the same whatever standard_conforming_strings is.
func literal(text string) string {
	text = strings.ReplaceAll(text, "'", "''")
	if strings.Contains(text, `\`) {
		return " E'" + strings.ReplaceAll(text, `\`, `\\`) + "'"
	}
	return "'" + text + "'"
}
