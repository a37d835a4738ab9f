package consul_test

import (
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/driver/drivertest"
	"github.com/gotenure/tenure/internal/testserver"
)

func TestConformance(t *testing.T) {
	url := testserver.ConsulURL(t)
	admin := client(t, url)
	const prefix = "conformance/"
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		return drivertest.Harness{
			Open: func(t testing.TB) driver.Store { return open(t, url+"&prefix="+prefix) },
			DeleteRecord: func(t testing.TB, election string) {
				if _, err := admin.KV().Delete(prefix+election, nil); err != nil {
					t.Fatal(err)
				}
			},
			DropSession: func(t testing.TB, session string) {
				if _, err := admin.Session().Destroy(session, nil); err != nil {
					t.Fatal(err)
				}
			},
			CorruptRecord: func(t testing.TB, election string) {
				if _, err := admin.KV().Put(&api.KVPair{Key: prefix + election, Value: []byte("nonsense")}, nil); err != nil {
					t.Fatal(err)
				}
			},
			// Consul does not tell which keys a session holds: one that has nothing to do with an election does not notice that somebody made it
			// the holder. See TestOverwritten for one that does.
			OverwriteRecord: nil,
			Resources: func(t testing.TB) int {
				sessions, _, err := admin.Session().List(nil)
				if err != nil {
					t.Fatal(err)
				}
				return len(sessions)
			},
		}
	})
}
