package postgres_test

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/postgres"
)

// patience bounds every wait for something that must happen.
const patience = testserver.Patience

var deadline, eventually = testserver.Deadline, testserver.Eventually

// adminURL returns the URL of a superuser of a running server.
func adminURL(t testing.TB) string {
	t.Helper()
	return testserver.PostgresURL(t)
}

// with returns the URL with parameters set, given as name, value pairs; the names user, password, host and database change these parts.
func with(t testing.TB, raw string, pairs ...string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	for i := 0; i < len(pairs); i += 2 {
		switch name, value := pairs[i], pairs[i+1]; name {
		case "user":
			u.User = url.User(value)
		case "password":
			u.User = url.UserPassword(u.User.Username(), value)
		case "host":
			u.Host = value
		case "database":
			u.Path = "/" + value
		default:
			q.Set(name, value)
		}
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// newSchema returns the URL of a schema that no other test uses, and its name. It is dropped at the end.
func newSchema(t testing.TB) (storeURL, schema string) {
	t.Helper()
	admin := adminURL(t)
	schema = "test_" + strings.ToLower(rand.Text()[:12])
	t.Cleanup(func() { exec(t, admin, `DROP SCHEMA IF EXISTS `+schema+` CASCADE`) })
	return with(t, admin, "schema", schema), schema
}

// newDatabase returns the administrator's URL of a database that no other test uses. It is dropped at the end.
func newDatabase(t testing.TB) string {
	t.Helper()
	admin := adminURL(t)
	name := "test_" + strings.ToLower(rand.Text()[:12])
	exec(t, admin, `CREATE DATABASE `+name)
	t.Cleanup(func() { exec(t, admin, `DROP DATABASE IF EXISTS `+name+` WITH (FORCE)`) })
	return with(t, admin, "database", name)
}

// connect returns a connection to the database of a store's or an administrator's URL, for what an operator does.
func connect(t testing.TB, raw string) *pgx.Conn {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	for _, own := range []string{"schema", "create", "bound", "poll"} {
		q.Del(own)
	}
	q.Set("application_name", "operator")
	u.RawQuery = q.Encode()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// exec runs one statement as an operator.
func exec(t testing.TB, raw, sql string, args ...any) {
	t.Helper()
	conn := connect(t, raw)
	defer conn.Close(context.Background())
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := conn.Exec(ctx, sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// query returns the one value that a statement returns.
func query[T any](t testing.TB, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var v T
	if err := conn.QueryRow(ctx, sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// openStore opens a store and closes it at the end.
func openStore(t testing.TB, raw string) *postgres.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := postgres.Open(ctx, raw)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// openStoreOnly opens a store that its user closes.
func openStoreOnly(t testing.TB, raw string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(deadline(t), raw)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// openSession opens a session and closes it at the end, or leaves it to the server when that is gone.
func openSession(t testing.TB, s driver.Store, member string, ttl time.Duration) driver.Session {
	t.Helper()
	n, err := s.Open(deadline(t), member, ttl)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = n.Close(ctx)
	})
	return n
}
