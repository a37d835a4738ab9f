package drivertest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver/drivertest"
)

// at is a moment on a made-up clock.
func at(second int) time.Time { return time.Unix(1_000_000_000+int64(second), 0).UTC() }

type story []drivertest.Event

func (s story) add(kind drivertest.EventKind, second int, session string, token uint64) story {
	e := drivertest.Event{Kind: kind, At: at(second), Session: session, Election: "e", Token: token}
	if kind == drivertest.Started {
		e.Deadline = at(second + 10)
	}
	return append(s, e)
}

func (s story) renewed(second int, session string, deadline int) story {
	return append(s, drivertest.Event{Kind: drivertest.Renewed, At: at(second), Session: session, Deadline: at(deadline)})
}

func TestVerifier(t *testing.T) {
	const (
		started  = drivertest.Started
		worked   = drivertest.Worked
		ended    = drivertest.Ended
		returned = drivertest.Returned
		overran  = drivertest.Overran
		released = drivertest.Released
		robbed   = drivertest.Robbed
		accepted = drivertest.Accepted
	)
	for _, c := range []struct {
		name  string
		story story
		want  string // part of what is found; empty: nothing
	}{
		{"one after the other", story{}.add(started, 0, "a", 1).add(worked, 5, "a", 1).add(ended, 10, "a", 1).add(returned, 11, "a", 1).add(released, 12, "a", 1).
			add(started, 12, "b", 2).add(ended, 13, "b", 2), ""},
		{"told in the wrong order", story{}.add(started, 12, "b", 2).add(ended, 13, "b", 2).add(started, 0, "a", 1).add(ended, 10, "a", 1), ""},
		{"renewed", story{}.add(started, 0, "a", 1).renewed(5, "a", 20).add(worked, 15, "a", 1).add(ended, 20, "a", 1), ""},
		{"renewal told after the work that relies on it", story{}.add(started, 0, "a", 1).add(worked, 15, "a", 1).renewed(5, "a", 20).add(ended, 20, "a", 1), ""},
		{"one token twice", story{}.add(started, 0, "a", 1).add(ended, 1, "a", 1).add(started, 2, "b", 1).add(ended, 3, "b", 1), "token 1 was given to session a before"},
		{"token falls", story{}.add(started, 0, "a", 2).add(ended, 1, "a", 2).add(started, 2, "b", 1).add(ended, 3, "b", 1), "before token 1"},
		{"no token", story{}.add(started, 0, "a", 0).add(ended, 1, "a", 0), "without a token"},
		{"overlap", story{}.add(started, 0, "a", 1).add(started, 4, "b", 2).add(ended, 5, "a", 1).add(ended, 6, "b", 2), "1s longer"},
		{"overlap by an end that is told first", story{}.add(started, 0, "a", 1).add(ended, 5, "a", 1).add(started, 4, "b", 2).add(ended, 6, "b", 2), "1s longer"},
		{"overlap of work that goes on", story{}.add(started, 0, "a", 1).add(ended, 5, "a", 1).add(started, 6, "b", 2).add(ended, 7, "b", 2).add(returned, 8, "a", 1), "2s longer"},
		{"overlap that was reported as an overrun", story{}.add(started, 0, "a", 1).add(ended, 5, "a", 1).add(started, 6, "b", 2).add(ended, 7, "b", 2).
			add(overran, 7, "a", 1).add(returned, 8, "a", 1), ""},
		{"overlap with one that never ends", story{}.add(started, 0, "a", 1).add(started, 4, "b", 2).add(ended, 5, "b", 2), "never said to have ended"},
		{"overlap with one that was robbed", story{}.add(started, 0, "a", 1).add(started, 4, "b", 2).add(robbed, 3, "a", 1).add(ended, 5, "a", 1).add(ended, 6, "b", 2), ""},
		{"robbing does not excuse the successor", story{}.add(started, 0, "a", 1).add(started, 4, "b", 2).add(robbed, 3, "a", 1).add(ended, 5, "a", 1).
			add(started, 5, "c", 3).add(ended, 6, "b", 2).add(ended, 7, "c", 3), "token 3 started"},
		{"past its deadline", story{}.add(started, 0, "a", 1).add(ended, 11, "a", 1), "ended 1s after its deadline"},
		{"work past the deadline", story{}.add(started, 0, "a", 1).add(worked, 12, "a", 1).add(ended, 10, "a", 1), "work 2s after the deadline"},
		{"work between deadline and a late renewal", story{}.add(started, 0, "a", 1).add(worked, 12, "a", 1).renewed(13, "a", 20).add(ended, 15, "a", 1), "before the next renewal"},
		{"work after the end", story{}.add(started, 0, "a", 1).add(ended, 4, "a", 1).add(worked, 5, "a", 1), "work 1s after the end"},
		{"work before the start", story{}.add(started, 1, "a", 1).add(worked, 0, "a", 1).add(ended, 2, "a", 1), "before the start"},
		{"end without a start", story{}.add(ended, 1, "a", 1), "ended without a start"},
		{"end of another session's term", story{}.add(started, 0, "a", 1).add(ended, 1, "b", 1).add(ended, 2, "a", 1), "ended without a start"},
		{"two starts", story{}.add(started, 0, "a", 1).add(started, 0, "a", 1).add(ended, 2, "a", 1), "given to session a before"},
		{"two ends", story{}.add(started, 0, "a", 1).add(ended, 2, "a", 1).add(ended, 2, "a", 1), "ended twice"},
		{"no end", story{}.add(started, 0, "a", 1), "never ended"},
		{"released while it is trusted", story{}.add(started, 0, "a", 1).add(released, 2, "a", 1).add(ended, 3, "a", 1), "released before its term had ended"},
		{"released while work runs", story{}.add(started, 0, "a", 1).add(ended, 2, "a", 1).add(released, 3, "a", 1).add(returned, 4, "a", 1), "1s after its term was released"},
		{"release of what nobody heard of", story{}.add(released, 2, "a", 1), ""},
		{"guard", story{}.add(accepted, 0, "a", 1).add(accepted, 1, "b", 2).add(accepted, 1, "b", 2), ""},
		{"guard told in the wrong order", story{}.add(accepted, 1, "b", 2).add(accepted, 0, "a", 1), ""},
		{"guard lets an old one pass", story{}.add(accepted, 0, "b", 2).add(accepted, 1, "a", 1), "accepted token 1 after token 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var v drivertest.Verifier
			for _, e := range c.story {
				v.Record(e)
			}
			err := v.Finish()
			switch {
			case c.want == "" && err != nil:
				t.Errorf("nothing is wrong, yet: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("found %v; want something with %q", err, c.want)
			case c.want != "" && c.name != "no token" && !strings.Contains(err.Error(), "\n\t"):
				t.Errorf("the history is missing: %v", err)
			}
			if _, events := v.Count(); events != len(c.story) {
				t.Errorf("%d events", events)
			}
		})
	}
}

// TestVerifierIsOnline shows that faults are known before the end, and that a tolerance is one.
func TestVerifierIsOnline(t *testing.T) {
	overlap := story{}.add(drivertest.Started, 0, "a", 1).add(drivertest.Started, 4, "b", 2).add(drivertest.Ended, 5, "a", 1)
	var strict drivertest.Verifier
	lenient := drivertest.Verifier{Tolerance: time.Second}
	for _, e := range overlap {
		strict.Record(e)
		lenient.Record(e)
	}
	if strict.Err() == nil {
		t.Error("an overlap is not known when it happens")
	}
	if err := lenient.Err(); err != nil {
		t.Errorf("an overlap within the tolerance: %v", err)
	}
}

// BenchmarkVerifier shows that a long history does not slow the verifier down.
func BenchmarkVerifier(b *testing.B) {
	var v drivertest.Verifier
	start := at(0)
	token := uint64(0)
	for b.Loop() {
		token++
		e := drivertest.Event{Kind: drivertest.Started, At: start, Session: "a", Election: "e", Token: token, Deadline: start.Add(time.Second)}
		v.Record(e)
		e.Kind = drivertest.Ended
		v.Record(e)
		start = start.Add(time.Second)
	}
	if err := v.Finish(); err != nil {
		b.Fatal(err)
	}
}
