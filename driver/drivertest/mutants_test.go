package drivertest_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/driver/drivertest"
)

// mutationVariable tells a copy of this test which mutant to test.
const mutationVariable = "DRIVERTEST_MUTATION"

// TestMutants shows that the suite notices: each case that a mutation names must fail on it. It runs them in a copy of the test's process, where they may.
func TestMutants(t *testing.T) {
	chosen := os.Getenv(mutationVariable)
	covered := make(map[string]bool)
	for _, m := range mutations {
		if chosen == m.name {
			drivertest.RunVirtual(t, m.harness)
			return
		}
		for name := range strings.SplitSeq(m.cases, "|") {
			covered[name] = true
		}
		if chosen != "" {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(exe, "-test.run=^TestMutants$/^("+m.cases+")$", "-test.v", "-test.timeout=2m")
			cmd.Env = append(os.Environ(), mutationVariable+"="+m.name)
			out, err := cmd.CombinedOutput()
			if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			for name := range strings.SplitSeq(m.cases, "|") {
				if !strings.Contains(string(out), "--- FAIL: TestMutants/"+name+" ") {
					t.Errorf("case %s does not notice that %s", name, m.name)
				}
			}
			if t.Failed() {
				t.Logf("%s", out)
			}
		})
	}
	if chosen != "" {
		t.Fatalf("no mutation is named %q", chosen)
	}
	for _, c := range drivertest.Cases() {
		if !covered[c.Name] {
			t.Errorf("no mutation shows that case %s can fail", c.Name)
		}
	}
}

// TestMutantWithoutMutation shows that it is the mutations that are noticed.
func TestMutantWithoutMutation(t *testing.T) {
	drivertest.RunVirtual(t, mutation{name: "nothing", get: corruptGet, list: corruptList(false), watch: corruptWatch, acquire: corruptAcquire, corrupt: true}.harness)
}

// What a store does with a record that an operator has corrupted.

func (m *mutant) corrupted(election string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.common.corrupt[election] {
		return fmt.Errorf("%w: %q", driver.ErrCorrupt, election)
	}
	return nil
}

func corruptGet(m *mutant, ctx context.Context, election string) (driver.Record, error) {
	if err := m.corrupted(election); err != nil {
		return driver.Record{}, err
	}
	return m.Store.Get(ctx, election)
}

func corruptAcquire(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
	if err := s.m.corrupted(bid.Election); err != nil {
		return driver.Record{}, err
	}
	return s.Session.Acquire(ctx, bid)
}

func corruptList(stop bool) func(m *mutant, ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return func(m *mutant, ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
		return func(yield func(driver.Record, error) bool) {
			for r, err := range m.Store.List(ctx, prefix) {
				if bad := m.corrupted(r.Election); bad != nil {
					r, err = driver.Record{}, bad
				}
				if !yield(r, err) || stop && err != nil {
					return
				}
			}
		}
	}
}

func corruptWatch(m *mutant, ctx context.Context, election string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		if err := m.corrupted(election); err != nil {
			yield(driver.Record{}, err)
			return
		}
		m.Store.Watch(ctx, election)(yield)
	}
}

// holder returns the session that holds the election, if there is one.
func (m *mutant) holder(ctx context.Context, election string) (*mutantSession, driver.Record) {
	r, _ := m.Store.Get(ctx, election)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sessions[r.Session], r
}

// filtered yields the states that keep lets through.
func filtered(seq iter.Seq2[driver.Record, error], keep func(driver.Record) bool) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		for r, err := range seq {
			if (err != nil || keep(r)) && !yield(r, err) {
				return
			}
		}
	}
}
