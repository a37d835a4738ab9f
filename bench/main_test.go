package bench_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) {
	if os.Getenv(childKind) != "" {
		if err := child(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// limit is for a whole benchmark. Reaching it is a failure, not a result.
func limit(b *testing.B) context.Context {
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	b.Cleanup(cancel)
	return ctx
}

func try(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// newDatabase makes a database on a server and returns its URL.
func newDatabase(b *testing.B, server string) string {
	b.Helper()
	u, err := url.Parse(server)
	try(b, err)
	name := "bench_" + strings.ToLower(rand.Text()[:12])
	admin := connect(b, server)
	_, err = admin.Exec(b.Context(), "CREATE DATABASE "+name)
	try(b, err)
	b.Cleanup(func() {
		if _, err := admin.Exec(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			b.Error(err)
		}
	})
	u.Path = "/" + name
	return u.String()
}

func connect(b *testing.B, url string) *pgx.Conn {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), url)
	try(b, err)
	b.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func number(b *testing.B, conn *pgx.Conn, sql string, args ...any) int64 {
	b.Helper()
	var n int64
	try(b, conn.QueryRow(b.Context(), sql, args...).Scan(&n))
	return n
}

// until waits until the condition holds.
func until(ctx context.Context, b *testing.B, what string, condition func() bool) {
	b.Helper()
	for !condition() {
		if ctx.Err() != nil {
			b.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(20 * time.Millisecond) // between looks
	}
}

func median(durations []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(durations))
	return sorted[len(sorted)/2]
}
