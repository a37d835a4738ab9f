package memory_test

import (
	"testing"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/driver/drivertest"
	"github.com/gotenure/tenure/store/memory"
)

func TestConformance(t *testing.T) { drivertest.Run(t, harness) }

func TestConformanceVirtual(t *testing.T) { drivertest.RunVirtual(t, harness) }

func harness(t *testing.T) drivertest.Harness {
	store := memory.New()
	t.Cleanup(func() { store.Close() })
	return drivertest.Harness{
		Open: func(testing.TB) driver.Store { return store.Share() },
		DeleteRecord: func(t testing.TB, election string) {
			if _, ok := store.DeleteRecord(election); !ok {
				t.Fatalf("no record of %q to delete", election)
			}
		},
		OverwriteRecord: func(t testing.TB, election, session string) {
			if !store.OverwriteRecord(election, session) {
				t.Fatalf("no session %q to make the holder of %q", session, election)
			}
		},
		DropSession: func(t testing.TB, session string) {
			if !store.DropSession(session) {
				t.Fatalf("no session %q to drop", session)
			}
		},
	}
}
