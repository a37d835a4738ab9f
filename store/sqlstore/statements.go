package sqlstore

import (
	"regexp"
	"strconv"
	"strings"
)

// statements are the texts of all statements, in the words of one dialect. Their parameters are given in the comments. A list is run in order.
type statements struct {
	version query // -> version
	open    query // id, member, ttl, version, bound -> id

	renew    query // session -> ttl; no row: the session is lost
	holds    query // session -> number, checksum, whether any is asked to resign
	places   query // session -> number, checksum
	namesake query // session, member -> id
	due      query // session, horizon -> µs until the first holder expires whom this session is to replace
	overdue  query // grace -> ids of sessions that should have been freed long ago
	precise  query // session -> what (1 hold, 2 place), election, token or seq, asked

	live    query // session -> 1; locks it against its end
	create  query // election, session
	lock    query // election
	take    []query
	drop    query // election, session
	enqueue query // election, session, value, nonce
	read    query // election, session -> see parse, then place, whether it is first in line
	get     query // election -> see parse
	list    query // after, prefix, limit -> see parse
	listTo  query // the same with an upper bound as the fourth

	find     query   // election, session -> token, place
	leave    query   // election, session, place -> place
	lockTerm query   // election, session, token
	transfer []query // election, session, token -> election, session, token

	lapsed   query   // session -> id
	close    query   // session -> id
	lockAll  query   // session
	inherit  []query // session -> election, session, token
	dropAll  query   // session
	overtake query   // session -> ids of expired sessions that hold what this one waits for

	grants  query // session, token -> election, token
	vacated query // session, place after which to look -> elections that this session waits for and nobody holds; and at the end, with no name, where to go on
	ask     []query

	first  query // session -> 1 if it is the first in line for something held by a bound session
	untied query // -> ids of bound sessions that have lost what they are bound to
}

// sound is the condition that a record is one this package could have written. It is the same as in parse.
const sound = `(e.session IS NULL AND e.member = '' AND e.token >= 0 OR e.session <> '' AND e.member <> '' AND e.token > 0)`

// partSize is how many places statement vacated looks at.
const partSize = "1000"

const record = `e.name, e.token, e.session, e.member, e.value, e.acquired_at, s.expires_at, {now}`

// set makes the session of n the holder, or nobody when that is null. The generator of tokens may have been set back, as that of a logical replica is, which
// gets the rows and not the sequence: an election's tokens grow all the same.
const set = `SET session = n.session, member = coalesce(n.member, ''), value = coalesce(n.value, CAST('' AS {bytes})),
  token = CASE WHEN n.session IS NULL THEN e.token ELSE {greatest}({token n.rank}, e.token + 1) END,
  acquired_at = CASE WHEN n.session IS NULL THEN 0 ELSE {now} END, asked = 0`

func newStatements(d Dialect) *statements {
	x := func(text string) query { return newQuery(d, text) }
	st := &statements{
		version: x(`SELECT max(version) FROM {meta}`),
		open: x(`INSERT INTO {sessions} (id, member, ttl, opened_at, expires_at, bound)
SELECT CAST($1 AS text), CAST($2 AS text), CAST($3 AS bigint), {now}, {now} + CAST($3 AS bigint), CAST($5 AS bigint) WHERE (SELECT max(version) FROM {meta}) = CAST($4 AS bigint)
RETURNING id`),

		renew: x(`UPDATE {sessions} SET expires_at = {now} + ttl WHERE id = $1 AND expires_at > {now} RETURNING ttl`),
		// Tokens are never used twice, so number and sum tell whether the set is the expected one.
		holds:    x(`SELECT count(*), CAST(coalesce(sum(token % 4294967296), 0) AS bigint), CAST(coalesce(max(asked), 0) AS bigint) FROM {elections} WHERE session = $1`),
		places:   x(`SELECT count(*), CAST(coalesce(sum(seq % 4294967296), 0) AS bigint) FROM {waiters} WHERE session = $1`),
		namesake: x(`SELECT id FROM {sessions} WHERE member = $2 AND id <> $1 AND expires_at > {now} ORDER BY opened_at LIMIT 1`),
		// Waiters ahead count unless they will be gone before the holder is. Mostly no session is about to expire, and then the tables are not read.
		due: x(`SELECT min(s.expires_at) - {now} FROM {sessions} AS s
JOIN {elections} AS e ON e.session = s.id JOIN {waiters} AS w ON w.election = e.name AND w.session = $1
WHERE (SELECT count(*) FROM {sessions} WHERE expires_at <= {now} + $2) > 0 AND s.expires_at <= {now} + $2
  AND NOT EXISTS (SELECT 1 FROM {waiters} AS f JOIN {sessions} AS fs ON fs.id = f.session
    WHERE f.election = w.election AND f.seq < w.seq AND fs.expires_at > s.expires_at)`),
		overdue: x(`SELECT id FROM {sessions} WHERE expires_at <= {now} - $1 ORDER BY expires_at LIMIT 16`),
		precise: x(`SELECT 1, name, token, asked FROM {elections} WHERE session = $1
UNION ALL SELECT 2, election, seq, 0 FROM {waiters} WHERE session = $1`),

		live:   x(`SELECT 1 FROM {sessions} AS s WHERE s.id = $1 AND s.expires_at > {now}{FOR KEY SHARE OF s}`),
		create: x(`INSERT INTO {elections} (name, token) SELECT CAST($1 AS text), 0 FROM {sessions} WHERE id = $2 AND expires_at > {now} ON CONFLICT (name) DO NOTHING`),
		lock:   x(`SELECT 1 FROM {elections} AS e WHERE e.name = $1{gate $1}{FOR UPDATE OF e}`),
		take: changing(d, Taken, "", (`UPDATE {elections} AS e SET session = $2, member = $3, value = $4,
  token = CASE WHEN e.session = $2 THEN e.token ELSE {greatest}({token 1}, e.token + 1) END,
  acquired_at = CASE WHEN e.session = $2 THEN e.acquired_at ELSE {now} END,
  asked = CASE WHEN e.session = $2 THEN e.asked ELSE 0 END
WHERE e.name = $1 AND ` + sound + ` AND EXISTS (SELECT 1 FROM {sessions} AS m WHERE m.id = $2 AND m.expires_at > {now})
  AND (e.session IS NULL OR NOT EXISTS (SELECT 1 FROM {sessions} AS s WHERE s.id = e.session) OR e.session = $2 AND e.value IS DISTINCT FROM $4)`), "", ""),
		drop: x(`DELETE FROM {waiters} WHERE election = $1 AND session = $2 AND EXISTS (SELECT 1 FROM {elections} WHERE name = $1 AND session = $2)`),
		enqueue: x(`INSERT INTO {waiters} AS w (election, session, member, value, nonce)
SELECT e.name, m.id, m.member, CAST($3 AS {bytes}), CAST($4 AS bigint) FROM {elections} AS e JOIN {sessions} AS m ON m.id = $2 AND m.expires_at > {now}
WHERE e.name = $1 AND e.session <> $2 AND ` + sound + `
ON CONFLICT (election, session) DO UPDATE SET value = excluded.value, nonce = excluded.nonce
WHERE w.value IS DISTINCT FROM excluded.value OR w.nonce <> excluded.nonce`),
		read: x(`SELECT ` + record + `, coalesce(w.seq, 0),
  CASE WHEN EXISTS (SELECT 1 FROM {waiters} AS f JOIN {sessions} AS fs ON fs.id = f.session
    WHERE f.election = e.name AND f.seq < w.seq AND fs.expires_at > s.expires_at) THEN 0 ELSE 1 END
FROM {elections} AS e LEFT JOIN {sessions} AS s ON s.id = e.session LEFT JOIN {waiters} AS w ON w.election = e.name AND w.session = $2
WHERE e.name = $1`),
		get: x(`SELECT ` + record + ` FROM {elections} AS e LEFT JOIN {sessions} AS s ON s.id = e.session WHERE e.name = $1`),
		list: x(`SELECT ` + record + ` FROM {elections} AS e LEFT JOIN {sessions} AS s ON s.id = e.session
WHERE e.name > $1 AND e.name >= $2 ORDER BY e.name LIMIT $3`),
		listTo: x(`SELECT ` + record + ` FROM {elections} AS e LEFT JOIN {sessions} AS s ON s.id = e.session
WHERE e.name > $1 AND e.name >= $2 AND e.name < $4 ORDER BY e.name LIMIT $3`),

		find: x(`SELECT coalesce((SELECT token FROM {elections} WHERE name = $1 AND session = $2), 0),
  coalesce((SELECT seq FROM {waiters} WHERE election = $1 AND session = $2), 0)`),
		leave:    x(`DELETE FROM {waiters} WHERE election = $1 AND session = $2 AND seq = $3 RETURNING seq`),
		lockTerm: x(`SELECT 1 FROM {elections} AS e WHERE e.name = $1 AND e.session = $2 AND e.token = $3{gate $1}{FOR UPDATE OF e}`),
		transfer: changing(d, Given,
			(`next AS (SELECT w.seq, w.session, w.member, w.value, w.nonce, 1 AS rank
  FROM {waiters} AS w JOIN {sessions} AS s ON s.id = w.session
  WHERE w.election = $1 AND w.session <> $2 AND s.expires_at > {now}
  ORDER BY w.seq LIMIT 1{FOR KEY SHARE OF s SKIP LOCKED})`),
			(`UPDATE {elections} AS e ` + set + `
FROM (SELECT next.* FROM (SELECT 1 AS one) AS always LEFT JOIN next ON true) AS n
WHERE e.name = $1 AND e.session = $2 AND e.token = $3 AND ` + sound),
			(`DELETE FROM {waiters} AS w USING changed WHERE w.election = changed.name AND w.session = changed.session`),
			(`DELETE FROM {waiters} WHERE election = $1 AND session IN (SELECT session FROM {elections} WHERE name = $1)`)),

		lapsed:  x(`DELETE FROM {sessions} WHERE id IN (SELECT s.id FROM {sessions} AS s WHERE s.id = $1 AND (s.expires_at <= {now} OR {untied}){FOR UPDATE OF s SKIP LOCKED}) RETURNING id`),
		close:   x(`DELETE FROM {sessions} WHERE id = $1 RETURNING id`),
		lockAll: x(`SELECT count(*) FROM (SELECT 1 FROM {elections} AS e WHERE e.session = $1 AND NOT EXISTS (SELECT 1 FROM {sessions} WHERE id = $1) ORDER BY e.name{FOR UPDATE OF e}) AS locked`),
		inherit: changing(d, Given,
			(`heirs AS (SELECT s.id FROM {sessions} AS s WHERE s.expires_at > {now} AND NOT EXISTS (SELECT 1 FROM {sessions} WHERE id = $1)
  AND s.id IN (SELECT w.session FROM {elections} AS h JOIN {waiters} AS w ON w.election = h.name WHERE h.session = $1){FOR KEY SHARE OF s SKIP LOCKED}),
next AS (SELECT l.election, l.seq, l.session, l.member, l.value, l.nonce, row_number() OVER (ORDER BY l.election) AS rank
  FROM (SELECT w.*, row_number() OVER (PARTITION BY w.election ORDER BY w.seq) AS place
    FROM {elections} AS h JOIN {waiters} AS w ON w.election = h.name JOIN heirs ON heirs.id = w.session WHERE h.session = $1) AS l
  WHERE l.place = 1)`),
			(`UPDATE {elections} AS e ` + set + `
FROM (SELECT h.name AS election, next.session, next.member, next.value, next.nonce, next.rank FROM {elections} AS h LEFT JOIN next ON next.election = h.name
  WHERE h.session = $1 AND NOT EXISTS (SELECT 1 FROM {sessions} WHERE id = $1)) AS n
WHERE e.name = n.election AND ` + sound),
			(`DELETE FROM {waiters} AS w USING next WHERE w.seq = next.seq`),
			(`DELETE FROM {waiters} WHERE EXISTS (SELECT 1 FROM {elections} AS e WHERE e.name = election AND e.session = {waiters}.session)`)),
		dropAll: x(`DELETE FROM {waiters} WHERE session = $1 AND NOT EXISTS (SELECT 1 FROM {sessions} WHERE id = $1)`),
		overtake: x(`SELECT DISTINCT s.id FROM {sessions} AS s JOIN {elections} AS e ON e.session = s.id
JOIN {waiters} AS w ON w.election = e.name AND w.session = $1 WHERE (SELECT count(*) FROM {sessions} WHERE expires_at <= {now}) > 0 AND s.expires_at <= {now} LIMIT 16`),

		grants: x(`SELECT name, token FROM {elections} WHERE session = $1 AND token > $2`),
		// One part of the queue's places at a time: what it finds is rare.
		vacated: x(`WITH part AS (SELECT election, seq FROM {waiters} WHERE session = $1 AND seq > $2 ORDER BY seq LIMIT ` + partSize + `)
SELECT p.election, 0 FROM part AS p LEFT JOIN {elections} AS e ON e.name = p.election LEFT JOIN {sessions} AS s ON s.id = e.session WHERE s.id IS NULL
UNION ALL SELECT '', CASE WHEN count(*) = ` + partSize + ` THEN max(seq) ELSE 0 END FROM part`),
		ask: changing(d, Asked, "", (`UPDATE {elections} AS e SET asked = 1 WHERE e.name = $1 AND e.token = $2{gate $1} AND ` + sound + `
  AND EXISTS (SELECT 1 FROM {sessions} AS s WHERE s.id = e.session AND s.expires_at > {now})`), "", ""),
	}
	if d.Untied != "" {
		st.first = x(`SELECT 1 FROM {waiters} AS w JOIN {elections} AS e ON e.name = w.election JOIN {sessions} AS s ON s.id = e.session AND s.bound <> 0
WHERE w.session = $1 AND NOT EXISTS (SELECT 1 FROM {waiters} AS f JOIN {sessions} AS fs ON fs.id = f.session AND fs.expires_at > {now}
  WHERE f.election = w.election AND f.seq < w.seq) LIMIT 1`)
		st.untied = x(`SELECT s.id FROM {sessions} AS s WHERE {untied} LIMIT 16`)
	}
	return st
}

// changing composes statements of an update of elections, the common table expressions it reads, and the removal of the waiters that were
// served: spent where that can be said in the same statement, else swept after it. The first returns election, session and token of each row that was changed.
func changing(d Dialect, kind Kind, with, update, spent, swept string) []query {
	if d.Notify == nil {
		if with != "" {
			update = "WITH " + with + "\n" + update
		}
		list := []query{newQuery(d, update+"\nRETURNING name, session, token")}
		if d.AfterToken != "" && kind != Asked {
			list = append(list, query{d.AfterToken, 0})
		}
		if swept != "" {
			list = append(list, newQuery(d, swept))
		}
		return list
	}
	if with != "" {
		with += ",\n"
	}
	if spent != "" {
		spent = ",\nspent AS (" + spent + ")"
	}
	nonce := "0"
	if kind == Given {
		nonce = "coalesce(n.nonce, 0)"
	}
	return []query{newQuery(d, "WITH "+with+"changed AS ("+update+"\nRETURNING e.name, e.session, e.token, e.acquired_at, "+nonce+" AS nonce)"+spent+
		"\nSELECT name, session, token, "+d.Notify(kind, Change{"name", "session", "token", "acquired_at", "nonce"})+" FROM changed")}
}

// A query is a statement's text.
type query struct {
	sql    string
	params int
}

// with returns the statement with the first of the arguments, as many as it has parameters.
func (q query) with(args ...any) Stmt { return Stmt{q.sql, args[:q.params]} }

// all is with for each of the queries.
func all(queries []query, args ...any) []Stmt {
	stmts := make([]Stmt, len(queries))
	for i, q := range queries {
		stmts[i] = q.with(args...)
	}
	return stmts
}

func newQuery(d Dialect, text string) query {
	q := query{sql: expand(d, text)}
	for _, m := range parameterMark.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[1])
		q.params = max(q.params, n)
	}
	return q
}

var (
	tokenMark     = regexp.MustCompile(`\{token ([^}]*)\}`)
	gateMark      = regexp.MustCompile(`\{gate ([^}]*)\}`)
	lockMark      = regexp.MustCompile(`\{(FOR [^}]*)\}`)
	parameterMark = regexp.MustCompile(`\$(\d+)`)
)

// expand fills in what is in braces, and writes parameters as the dialect does.
func expand(d Dialect, text string) string {
	text = tokenMark.ReplaceAllStringFunc(text, func(m string) string { return d.Token(tokenMark.FindStringSubmatch(m)[1]) })
	text = gateMark.ReplaceAllStringFunc(text, func(m string) string {
		if d.Gate == nil {
			return ""
		}
		return " AND " + d.Gate(gateMark.FindStringSubmatch(m)[1])
	})
	text = lockMark.ReplaceAllStringFunc(text, func(m string) string {
		if !d.RowLocks {
			return ""
		}
		return " " + m[1:len(m)-1]
	})
	var pairs []string
	for _, name := range []string{"meta", "sessions", "elections", "waiters"} {
		pairs = append(pairs, "{"+name+"}", d.Table(name))
	}
	untied := "false"
	if d.Untied != "" {
		untied = "s.bound <> 0 AND " + d.Untied
	}
	text = strings.NewReplacer(append(pairs, "{now}", d.Now, "{untied}", untied, "{bytes}", d.Bytes, "{greatest}", d.Greatest)...).Replace(text)
	if d.Parameter != nil {
		text = parameterMark.ReplaceAllStringFunc(text, func(m string) string {
			n, _ := strconv.Atoi(m[1:])
			return d.Parameter(n)
		})
	}
	return text
}
