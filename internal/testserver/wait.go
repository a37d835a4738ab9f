package testserver

import (
	"context"
	"testing"
	"time"
)

// Patience bounds a wait for something that must happen. It is long because it is waited out only by a test that fails.
const Patience = time.Minute

// Deadline returns a context for calls that must succeed. It ends after Patience, or at the end of the test.
func Deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Eventually waits until f returns "", which else says what is missing.
func Eventually(t testing.TB, f func() string) {
	t.Helper()
	for end := time.Now().Add(Patience); ; {
		missing := f()
		if missing == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after %v: %s", Patience, missing)
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
}
