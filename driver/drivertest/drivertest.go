// Package drivertest tests implementations of package driver, and what is built on them.
//
// It has three parts. Run is the conformance suite: a driver's test is a Harness of about 25 lines. Faults is a driver.Store around
// another that delays, loses, duplicates and withholds calls, from a script or a seed. A Verifier follows what holders of elections do,
// and says when two led at once, a token came twice, or a holder went on past its deadline.
//
// The suite knows no driver by name. What a store cannot do it declares in driver.Info, or by leaving a hook of the Harness nil; cases that
// do not apply are listed in the test's log, not skipped.
package drivertest

import (
	"crypto/rand"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gotenure/tenure/driver"
)

// A Harness is what the suite needs to know of a store under test.
type Harness struct {
	// Open returns another handle onto the same place, independent of all others, as another process would open one. It calls t.Fatal when
	// it cannot. The suite closes it. It may be called from the test's goroutine only.
	Open func(t testing.TB) driver.Store

	// What an operator, or a client that knows nothing of this library, may do to the store behind the back of its users. Hooks that are nil
	// cannot be done; their cases do not run. Each calls t.Fatal when it fails.
	DeleteRecord    func(t testing.TB, election string)          // delete the election's record, its token included
	OverwriteRecord func(t testing.TB, election, session string) // make another live session the holder, with a new token
	DropSession     func(t testing.TB, session string)           // revoke a live session
	CorruptRecord   func(t testing.TB, election string)          // make the record one that no driver could have written

	// Resources counts what a driver might leak besides goroutines, for instance connections and rows of sessions. Nil: nothing is counted.
	Resources func(t testing.TB) int

	// TTL is that of sessions which are to lapse. 0: 2 s, or the store's least if that is more. Shorter makes the suite faster, and wrong when a
	// single request may take that long.
	TTL time.Duration

	// MaxValue is the greatest length of a value that the store must take, in bytes. 0: 64 KiB.
	MaxValue int

	// Cycles is how often the leak case acquires, fails and cancels. 0: 1,000.
	Cycles int

	// NoNamesake says that the store cannot tell a session that another has its member's ID.
	NoNamesake bool
}

// A Case is one case of the suite.
type Case struct {
	Name string
	Why  string // what goes wrong for users of a store that fails it; letters with numbers are rules and cases of the project's notes

	absent func(*env) string // why the case does not apply; nil: it always does
	alone  bool              // it looks at the whole process: nothing may run beside it
	run    func(*env)
}

// patience bounds every wait for something that must happen. It is long because it is waited out only when a case fails.
const patience = 30 * time.Second

// Run runs the suite. It calls harness once for itself and once for each case, with the case's own t; the harnesses may share a place, for
// the cases use names of their own. Cases run in parallel as far as -parallel allows.
func Run(t *testing.T, harness func(t *testing.T) Harness) {
	run(t, harness, func(t *testing.T, f func(t *testing.T)) { f(t) })
}

// RunVirtual runs the suite under virtual time, each case in a testing/synctest bubble of its own. It is for stores that do no I/O; each harness
// must have a place of its own.
func RunVirtual(t *testing.T, harness func(t *testing.T) Harness) {
	run(t, harness, synctest.Test)
}

func run(t *testing.T, harness func(t *testing.T) Harness, in func(*testing.T, func(*testing.T))) {
	seen := make(map[string]bool)
	probe := newEnv(t, harness(t))
	for _, c := range Cases() {
		if seen[c.Name] {
			t.Fatalf("two cases are named %s", c.Name)
		}
		seen[c.Name] = true
		if c.absent != nil {
			if reason := c.absent(probe); reason != "" {
				t.Logf("%s does not apply: %s", c.Name, reason)
				continue
			}
		}
		t.Run(c.Name, func(t *testing.T) {
			if !c.alone {
				t.Parallel()
			}
			in(t, func(t *testing.T) {
				t.Cleanup(func() {
					if t.Failed() {
						t.Logf("this matters because %s", c.Why)
					}
				})
				c.run(newEnv(t, harness(t)))
			})
		})
	}
}

// Cases returns the cases in the order in which they are best read, and mended.
func Cases() []Case {
	var cases []Case
	for _, group := range [][]Case{
		infoCases, recordCases, nameCases, sessionCases, tokenCases, releaseCases,
		awaitCases, queueCases, watchCases, tamperCases, endCases, loadCases,
	} {
		cases = append(cases, group...)
	}
	return cases
}

// run of letters that tells this process's elections from those of an earlier run in the same store
var runID = strings.ToLower(rand.Text()[:8])

func needsQueue(e *env) string {
	if !e.info.Queue {
		return "the store has no queue"
	}
	return ""
}

func needsPush(e *env) string {
	if !e.info.Push {
		return "the store does not push"
	}
	return ""
}

func needsSharing(e *env) string {
	if !e.info.SharedSessions {
		return "a session holds one election only"
	}
	return ""
}

func needsDelete(e *env) string    { return needsHook(e.h.DeleteRecord == nil, "DeleteRecord") }
func needsOverwrite(e *env) string { return needsHook(e.h.OverwriteRecord == nil, "OverwriteRecord") }
func needsDrop(e *env) string      { return needsHook(e.h.DropSession == nil, "DropSession") }
func needsCorrupt(e *env) string   { return needsHook(e.h.CorruptRecord == nil, "CorruptRecord") }

func needsAsker(e *env) string {
	if _, ok := e.store.(driver.Asker); !ok {
		return "the store is no driver.Asker"
	}
	return ""
}

func needsHook(missing bool, name string) string {
	if missing {
		return "the harness has no " + name
	}
	return ""
}
