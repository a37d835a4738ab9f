package kubernetes_test

import (
	"testing"

	"github.com/gotenure/tenure/driver"
)

func acquire(t testing.TB, s driver.Session, election string) driver.Record {
	t.Helper()
	r, err := s.Acquire(t.Context(), driver.Bid{Election: election, Queue: true})
	if err != nil {
		t.Fatalf("Acquire(%q): %v", election, err)
	}
	return r
}
