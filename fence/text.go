package fence

import (
	"hash/fnv"
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
		"{key}", "hashtextextended("+name+", "+strconv.FormatInt(g.seed(), 10)+")",
		"{timeout}", strconv.FormatInt(g.idleTimeout.Milliseconds(), 10),
	).Replace(text)
}

// seed makes the keys of advisory locks differ between namespaces, and from those that others make of the same names.
func (g *Guard) seed() int64 {
	hash := fnv.New64a()
	hash.Write([]byte("tenure fence " + g.namespace))
	return int64(hash.Sum64())
}

func (g *Guard) quotedNamespace() string { return quoted(g.namespace) }

func quoted(identifier string) string {
	return `"` + strings.ReplaceAll(identifier, `"`, `""`) + `"`
}

func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
