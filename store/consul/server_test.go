package consul_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/consul"
)

// patience bounds every wait for something that must happen.
const patience = testserver.Patience

var eventually = testserver.Eventually

// open opens a store that is closed with the test.
func open(t testing.TB, url string) *consul.Store {
	t.Helper()
	s, err := consul.Open(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	return s
}

// client returns an administrator's client of the server of a store URL.
func client(t testing.TB, url string) *api.Client {
	t.Helper()
	addr, _, _ := strings.Cut(strings.TrimPrefix(url, "consul://"), "?")
	c, err := api.NewClient(&api.Config{Address: addr})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func session(t testing.TB, store driver.Store, member string, ttl time.Duration) driver.Session {
	t.Helper()
	s, err := store.Open(t.Context(), member, ttl)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Close(ctx) // the server may be gone
	})
	return s
}

func bid(election string) driver.Bid { return driver.Bid{Election: election, Queue: true} }
