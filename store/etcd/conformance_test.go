package etcd_test

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/driver/drivertest"
	"github.com/gotenure/tenure/internal/testserver"
)

func TestConformance(t *testing.T) { conform(t, testserver.EtcdURL(t), "") }

// conform runs the suite at a store URL, below a prefix.
func conform(t *testing.T, storeURL, prefix string) {
	operator := connect(t, storeURL)
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		return drivertest.Harness{
			Open: func(t testing.TB) driver.Store { return openStoreOnly(t, storeURL+"?prefix="+prefix) },
			DeleteRecord: func(t testing.TB, election string) {
				must(operator.Delete(deadline(t), prefix+election+"/", clientv3.WithPrefix()))(t)
			},
			OverwriteRecord: func(t testing.TB, election, session string) {
				overwrite(t, operator, prefix+election, session)
			},
			DropSession: func(t testing.TB, session string) {
				must(operator.Revoke(deadline(t), leaseOf(t, session)))(t)
			},
			CorruptRecord: func(t testing.TB, election string) {
				kv := leading(t, operator, prefix+election)
				must(operator.Put(deadline(t), string(kv.Key), "stray"))(t) // without its lease
			},
			Resources: func(t testing.TB) int {
				leases := must(operator.Leases(deadline(t)))(t)
				keys := must(operator.Get(deadline(t), "", clientv3.WithPrefix(), clientv3.WithCountOnly()))(t)
				return len(leases.Leases) + int(keys.Count)
			},
		}
	})
}
