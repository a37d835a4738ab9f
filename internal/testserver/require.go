// Package testserver is for tests that need real servers, and to crash them. Only tests import it.
//
// Where a server is wanting a test is skipped, which make test, where nothing is wanting, takes for a failure.
package testserver

import (
	"os"
	"testing"
)

// PostgresURL returns the URL of a running PostgreSQL server that all tests share, for its superuser.
func PostgresURL(t testing.TB) string {
	t.Helper()
	return getenv(t, "TENURE_TEST_POSTGRES")
}

// PgBouncerURL returns the URL of the same database by way of PgBouncer in transaction mode.
func PgBouncerURL(t testing.TB) string {
	t.Helper()
	return getenv(t, "TENURE_TEST_PGBOUNCER")
}

func getenv(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Skipf("%s is not set: run the tests through go run ./dev/servers -- go test ...", name)
	}
	return value
}
