package drivertest_test

import (
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/driver/drivertest"
	"github.com/gotenure/tenure/store/memory"
)

// memoryHarness is that of the reference store, whose own tests run the suite in real time, too.
func memoryHarness(t *testing.T) drivertest.Harness {
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

// TestFaultless shows that Faults leaves alone what it is not told to disturb.
func TestFaultless(t *testing.T) {
	drivertest.RunVirtual(t, func(t *testing.T) drivertest.Harness {
		h := memoryHarness(t)
		open := h.Open
		h.Open = func(t testing.TB) driver.Store { return drivertest.NewFaults(open(t), nil) }
		return h
	})
}

// TestSlowStore shows that the suite is content with a store that is right and slow, and whose requests arrive although their callers have given up.
func TestSlowStore(t *testing.T) {
	drivertest.RunVirtual(t, func(t *testing.T) drivertest.Harness {
		h := memoryHarness(t)
		open := h.Open
		h.Open = func(t testing.TB) driver.Store {
			return drivertest.NewFaults(open(t), func(drivertest.Call) drivertest.Fault {
				return drivertest.Fault{Before: 3 * time.Millisecond, After: 4 * time.Millisecond}
			})
		}
		return h
	})
}
