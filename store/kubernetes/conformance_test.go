package kubernetes_test

import (
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/driver/drivertest"
	"github.com/gotenure/tenure/internal/testserver"
)

func TestConformance(t *testing.T) {
	url := newNamespace(t, testserver.KubernetesURL(t))
	api := connect(t, url)
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		return drivertest.Harness{
			Open:         func(t testing.TB) driver.Store { return open(t, url) },
			DeleteRecord: func(t testing.TB, election string) { api.delete(t, election) },
			CorruptRecord: func(t testing.TB, election string) {
				api.edit(t, election, func(_, annotations map[string]any) { annotations[tokenKey] = "nonsense" })
			},
			// A session is nothing at the server but the holder of Leases: nobody can revoke it, it cannot be told that another has its member's ID, and one that
			// stands in no election does not notice that somebody made it the holder. See TestOverwritten for one that does.
			NoNamesake: true,
			MaxValue:   64 << 10,
			TTL:        3 * time.Second,
		}
	})
}
