package consul_test

import (
	"testing"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/internal/testserver"
)

type office = testserver.Office

var newOffice = testserver.NewOffice

// A replica is one process of a fleet. stop ends it in good order, and returns when it has ended.
type replica struct {
	name string
	stop func()
}

// startMember starts a replica that elects with this library, over a store of its own.
func startMember(t testing.TB, url string, o *office, election, name string, ttl time.Duration) replica {
	t.Helper()
	member, err := tenure.Join(t.Context(), open(t, url), tenure.Config{ID: name, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return replica{name, o.Stand(member, election, name)}
}
