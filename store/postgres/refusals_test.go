package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/postgres"
)

// refused opens a store that must be refused, and checks that the error wraps driver.ErrInvalid and has the words.
func refused(t *testing.T, storeURL string, words ...string) {
	t.Helper()
	s, err := postgres.Open(deadline(t), storeURL)
	if err == nil {
		s.Close()
		t.Fatalf("Open succeeded; want an error with %q", words)
	}
	checkError(t, err, words...)
}

func checkError(t *testing.T, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("%v; want it to wrap driver.ErrInvalid", err)
	}
	for _, word := range words {
		if !strings.Contains(fmt.Sprint(err), word) {
			t.Errorf("%v; want %q in it", err, word)
		}
	}
}

func TestURL(t *testing.T) {
	for _, test := range []struct{ url, words string }{
		{"mysql://h/d", "postgres://"},
		{"host=h dbname=d", "postgres://"},
		{"postgres://h/d?shema=x", `"shema"|schema, create, bound, poll|sslmode`},
		{"postgres://h/d?schema=a&schema=b", `"schema"|2 times`},
		{"postgres://h/d?schema=", `schema`},
		{"postgres://h/d?create=perhaps", `create="perhaps"|true or false`},
		{"postgres://h/d?bound=2", `bound="2"|true or false`},
		{"postgres://h/d?poll=soon", `poll="soon"|1s`},
		{"postgres://h/d?poll=1us", `poll|10ms`},
		{"postgres://h/d?schema=pg_mine", `pg_`},
		{"postgres://h/d?schema=" + strings.Repeat("x", 64), `63`},
		{"postgres://h/d?schema=a%0Ab", `schema|U+000A`},
		{"postgres://h/d?sslmode=maybe", `sslmode`},
		{"postgres://h/d?pool_max_conns=none", `pool_max_conns`},
		{"postgres://u:s3cret%zz@h/d", `percent-encode`},
		{"postgres://u:s3cret@h:port/d", `port`},
		{"postgres://u:s3/cret@h/d", `percent-encode`},
		{"postgres://u:12/cret@h/d", `percent-encode|@`},
		{"postgres://u:12?cret@h/d", `percent-encode`},
		{"postgres://u:12#cret@h/d", `percent-encode|#`},
		{"postgres://", `names no server|postgres://`},
		{"postgres://u:s3cret@h/d?sslmode=maybe", `sslmode`},
		{"postgres://u@h/d?password=s3cret&sslmode=maybe", `sslmode`},
		{"postgres://u:s3cret@h/d?a=%zz", `parameters`},
		{"postgres://u:s3cret@h/d?connect_timeout=long", `connect_timeout`},
	} {
		t.Run(test.url, func(t *testing.T) {
			_, err := postgres.Open(t.Context(), test.url)
			checkError(t, err, strings.Split(test.words, "|")...)
			if strings.Contains(fmt.Sprint(err), "s3") || strings.Contains(fmt.Sprint(err), "cret") {
				t.Errorf("the error shows the password: %v", err)
			}
		})
	}
}

// chain returns the texts of an error and of all that it wraps.
func chain(err error) string {
	if err == nil {
		return ""
	}
	text := fmt.Sprintf("%v %+v\n", err, err)
	switch e := err.(type) { //nolint:errorlint // it unwraps
	case interface{ Unwrap() error }:
		text += chain(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			text += chain(err)
		}
	}
	return text
}

func TestPasswordIsNotShown(t *testing.T) {
	server := testserver.StartPostgres(t)
	exec(t, server.URL(), `CREATE ROLE app LOGIN PASSWORD 'right'`)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := free.Addr().String()
	free.Close()
	const secret = `Wr0ng/p@ss w%rd`
	base := with(t, server.URL(), "user", "app", "password", secret)
	for name, storeURL := range map[string]string{
		"wrong password":     base,
		"refused connection": with(t, base, "host", closed),
		"unknown database":   with(t, base, "database", "nowhere"),
		"no such host":       with(t, base, "host", "nowhere.invalid:5432"),
		"TLS":                with(t, base, "sslmode", "verify-full"),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := postgres.Open(deadline(t), storeURL)
			if err == nil {
				t.Fatal("Open succeeded")
			}
			t.Log(err)
			for _, part := range []string{"Wr0ng", "p@ss", "p%40ss", "w%rd"} {
				if strings.Contains(chain(err), part) {
					t.Errorf("the error shows %q of the password: %s", part, chain(err))
				}
			}
		})
	}
}

// A server that does not answer the question whether it is the primary is not called a standby.
func TestPrimaryUnknown(t *testing.T) {
	admin := newDatabase(t)
	exec(t, admin, `REVOKE EXECUTE ON FUNCTION pg_is_in_recovery() FROM PUBLIC`)
	role := query[string](t, connect(t, admin), `SELECT 'asker_' || current_database()`)
	exec(t, admin, `CREATE ROLE `+role+` LOGIN PASSWORD 'pw'`)
	t.Cleanup(func() { exec(t, admin, `DROP ROLE `+role) })
	_, err := postgres.Open(deadline(t), with(t, admin, "user", role, "password", "pw"))
	if text := fmt.Sprint(err); !strings.Contains(text, "pg_is_in_recovery") || strings.Contains(text, "name its host") {
		t.Error(err)
	}
}

func TestSchemaVersion(t *testing.T) {
	storeURL, schema := newSchema(t)
	s := openStore(t, storeURL)
	session := openSession(t, s, "m", time.Hour)
	exec(t, storeURL, `UPDATE `+schema+`.meta SET version = 7`)
	words := []string{"version 7", "version 1", schema}
	refused(t, storeURL, words...)
	if _, err := s.Open(deadline(t), "m", time.Hour); err == nil {
		t.Error("a session was opened")
	} else {
		checkError(t, err, words...)
	}
	if _, err := session.KeepAlive(deadline(t)); err != nil {
		t.Errorf("KeepAlive of a session that was there before: %v", err)
	}
	exec(t, storeURL, `DELETE FROM `+schema+`.meta`)
	refused(t, storeURL, "no version", schema)
	exec(t, storeURL, `DROP TABLE `+schema+`.meta; CREATE TABLE `+schema+`.meta (mine text)`)
	refused(t, storeURL, schema, "another schema")
}

// A role that lacks a privilege is told which, and what to do; and that is enough.
func TestPrivileges(t *testing.T) {
	server := testserver.StartPostgres(t)
	admin := server.URL()
	exec(t, admin, `CREATE ROLE app LOGIN PASSWORD 'pw'`)
	exec(t, admin, `CREATE ROLE reader LOGIN PASSWORD 'pw'`)
	app := with(t, admin, "user", "app", "password", "pw")
	reader := with(t, admin, "user", "reader", "password", "pw")

	refused(t, app, `"tenure"`, `GRANT CREATE ON DATABASE "postgres" TO "app"`, "tenure store schema")
	exec(t, admin, `CREATE SCHEMA tenure`)
	refused(t, app, `GRANT USAGE ON SCHEMA "tenure" TO "app"`)
	exec(t, admin, `GRANT USAGE ON SCHEMA tenure TO app`)
	refused(t, app, `GRANT CREATE ON SCHEMA "tenure" TO "app"`)
	refused(t, with(t, admin, "create", "false"), "tenure store init")
	exec(t, admin, postgres.Schema("")) // what tenure store schema prints, twice
	exec(t, admin, postgres.Schema(""))
	grants := []string{
		`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "tenure" TO "app"`,
		`GRANT USAGE ON ALL SEQUENCES IN SCHEMA "tenure" TO "app"`,
	}
	refused(t, app, grants...)
	exec(t, admin, grants[0])
	s := openStore(t, app)
	n := openSession(t, s, "m", time.Hour)
	if _, err := n.Acquire(deadline(t), driver.Bid{Election: "e"}); err == nil {
		t.Error("a token was drawn without the privilege")
	} else {
		checkError(t, err, grants...)
	}
	exec(t, admin, grants[1])
	held, err := campaign(deadline(t), n, "e")
	if err != nil {
		t.Fatal(err)
	}
	other := openSession(t, openStore(t, app), "other", time.Hour)
	won := waiting(t, other, "e")
	if err := s.Ask(deadline(t), "e", held.Token); err != nil {
		t.Error(err)
	}
	if grant, err := n.KeepAlive(deadline(t)); err != nil || grant.Asked["e"] != held.Token {
		t.Errorf("KeepAlive: %+v, %v", grant, err)
	}
	if err := n.Release(deadline(t), "e", held.Token); err != nil {
		t.Fatal(err)
	}
	if err := <-won; err != nil {
		t.Fatal(err)
	}

	exec(t, admin, `GRANT USAGE ON SCHEMA tenure TO reader`)
	exec(t, admin, `GRANT SELECT ON tenure.meta, tenure.sessions, tenure.elections, tenure.status TO reader`)
	look := openStore(t, reader)
	if r, err := look.Get(deadline(t), "e"); err != nil || r.Session != other.ID() {
		t.Errorf("Get: %+v, %v", r, err)
	}
	for r, err := range look.List(deadline(t), "") {
		if err != nil || r.Session != other.ID() {
			t.Errorf("List: %+v, %v", r, err)
		}
	}
	for r, err := range look.Watch(deadline(t), "e") {
		if err != nil || r.Session != other.ID() {
			t.Errorf("Watch: %+v, %v", r, err)
		}
		break
	}
	if _, err := look.Open(deadline(t), "m", time.Hour); err == nil {
		t.Error("a role that may only look has opened a session")
	} else {
		checkError(t, err, `"reader"`, "GRANT")
	}
}

// Init creates what create=false does not, and does no harm.
func TestInit(t *testing.T) {
	storeURL, schema := newSchema(t)
	storeURL = with(t, storeURL, "create", "false")
	refused(t, storeURL, schema, "tenure store init")
	for range 2 {
		if err := postgres.Init(deadline(t), storeURL); err != nil {
			t.Fatal(err)
		}
	}
	openSession(t, openStore(t, storeURL), "m", time.Hour)
}

// Ten processes start at the same moment on an empty database.
func TestCreatedOnce(t *testing.T) {
	admin := newDatabase(t)
	result := make(chan error, 10)
	for range 10 {
		go func() {
			s, err := postgres.Open(deadline(t), admin)
			if err == nil {
				err = s.Close()
			}
			result <- err
		}()
	}
	for range 10 {
		if err := <-result; err != nil {
			t.Error(err)
		}
	}
}

// The name of the schema may be anything that PostgreSQL takes.
func TestSchemaNames(t *testing.T) {
	admin := newDatabase(t)
	for _, schema := range []string{`we"ird 'schäma\`, strings.Repeat("é", 31), "Tenure", "tenure/1"} {
		storeURL := with(t, admin, "schema", schema)
		first := openSession(t, openStore(t, storeURL), "m 'n\"o\\", time.Hour)
		second := openSession(t, openStore(t, storeURL), "🗳", time.Hour)
		for _, election := range []string{`a"b'c\d/e f`, "🗳️ 東京", strings.Repeat("x", 255), "$1; DROP TABLE x --"} {
			r, err := campaign(deadline(t), first, election)
			if err != nil {
				t.Fatalf("schema %q, election %q: %v", schema, election, err)
			}
			won := waiting(t, second, election)
			began := time.Now()
			if err := first.Release(deadline(t), election, r.Token); err != nil {
				t.Fatal(err)
			}
			if err := <-won; err != nil {
				t.Fatalf("schema %q, election %q: %v", schema, election, err)
			}
			if took := time.Since(began); took > 4*time.Second {
				t.Errorf("schema %q, election %q: the handover took %v, as if nothing was notified", schema, election, took)
			}
		}
	}
}

// A database whose encoding lacks characters of a name says so, and works with others.
func TestOtherEncoding(t *testing.T) {
	admin := adminURL(t)
	exec(t, admin, `CREATE DATABASE test_latin1 ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0`)
	t.Cleanup(func() { exec(t, admin, `DROP DATABASE test_latin1 WITH (FORCE)`) })
	n := openSession(t, openStore(t, with(t, admin, "database", "test_latin1")), "m", time.Hour)
	if _, err := campaign(deadline(t), n, "é"); err != nil {
		t.Error(err)
	}
	if _, err := n.Acquire(deadline(t), driver.Bid{Election: "東京"}); err == nil {
		t.Error("acquired")
	} else {
		checkError(t, err, "encoding")
	}
}

// Rows that this package did not write are reported by name, left as they are, and stop nobody else.
func TestCorruptRecords(t *testing.T) {
	storeURL, schema := newSchema(t)
	s := openStore(t, storeURL)
	n := openSession(t, s, "m", time.Hour)
	for i, row := range []string{
		`-7, NULL, ''`, `-7, '` + n.ID() + `', 'm'`, `0, '` + n.ID() + `', 'm'`, `7, '', 'm'`, `7, '', ''`, `7, NULL, 'm'`, `7, '` + n.ID() + `', ''`,
	} {
		name := fmt.Sprint("corrupt ", i)
		exec(t, storeURL, `INSERT INTO `+schema+`.elections (name, token, session, member) VALUES ('`+name+`', `+row+`)`)
		before := dump(t, storeURL, schema, name)
		if _, err := s.Get(deadline(t), name); !errors.Is(err, driver.ErrCorrupt) || !strings.Contains(err.Error(), name) {
			t.Errorf("Get of (%s): %v; want ErrCorrupt with the name", row, err)
		}
		for _, queue := range []bool{false, true} {
			if _, err := n.Acquire(deadline(t), driver.Bid{Election: name, Queue: queue}); !errors.Is(err, driver.ErrCorrupt) {
				t.Errorf("Acquire of (%s): %v; want ErrCorrupt", row, err)
			}
		}
		for _, err := range s.Watch(deadline(t), name) {
			if !errors.Is(err, driver.ErrCorrupt) {
				t.Errorf("Watch of (%s): %v; want ErrCorrupt", row, err)
			}
			break
		}
		if after := dump(t, storeURL, schema, name); after != before {
			t.Errorf("the row was %s and is %s", before, after)
		}
	}
	exec(t, storeURL, `INSERT INTO `+schema+`.elections (name, token) VALUES (E'line\nbreak', 1)`)
	if _, err := campaign(deadline(t), n, "sound"); err != nil {
		t.Fatal(err)
	}
	corrupt, sound := 0, 0
	for r, err := range s.List(deadline(t), "") {
		switch {
		case errors.Is(err, driver.ErrCorrupt) && r.Election != "":
			corrupt++
		case err == nil && r.Election == "sound":
			sound++
		default:
			t.Errorf("List: %+v, %v", r, err)
		}
	}
	if corrupt != 8 || sound != 1 {
		t.Errorf("List has %d corrupt records and %d sound ones", corrupt, sound)
	}
	if grant, err := n.KeepAlive(deadline(t)); err != nil {
		t.Errorf("KeepAlive: %v", err)
	} else if _, ok := grant.Holds["sound"]; grant.Holds != nil && !ok {
		t.Errorf("Holds is %v", grant.Holds)
	}
}

func dump(t *testing.T, storeURL, schema, election string) string {
	conn := connect(t, storeURL)
	defer conn.Close(context.Background())
	return query[string](t, conn, `SELECT e::text FROM `+schema+`.elections AS e WHERE name = $1`, election)
}

func TestTTLBounds(t *testing.T) {
	storeURL, _ := newSchema(t)
	s := openStore(t, storeURL)
	for _, ttl := range []time.Duration{0, -time.Second, s.Info().MinTTL - 1, s.Info().MaxTTL + 1} {
		if _, err := s.Open(deadline(t), "m", ttl); err == nil {
			t.Errorf("TTL %v is taken", ttl)
		} else {
			checkError(t, err, ttl.String(), s.Info().MinTTL.String(), s.Info().MaxTTL.String())
		}
	}
	for _, ttl := range []time.Duration{s.Info().MinTTL, s.Info().MaxTTL} {
		openSession(t, s, "m", ttl)
	}
}
