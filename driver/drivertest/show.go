package drivertest

import (
	"fmt"

	"github.com/gotenure/tenure/driver"
)

// show describes a record for the message of a failure.
func show(r driver.Record) string {
	holder := "vacant"
	if r.Held() || r.Leader != "" {
		holder = fmt.Sprintf("held by session %q of %q", r.Session, r.Leader)
	}
	return fmt.Sprintf("%.60q is %s, token %d, value %.40q", r.Election, holder, r.Token, r.Value)
}

// same reports whether two records are one state.
func same(a, b driver.Record) bool {
	return a.Election == b.Election && a.Leader == b.Leader && a.Session == b.Session && a.Token == b.Token && string(a.Value) == string(b.Value)
}
