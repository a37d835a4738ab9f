package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/memory"
)

func join(t *testing.T, st *memory.Store, cfg tenure.Config) *tenure.Member {
	t.Helper()
	m, err := tenure.Join(t.Context(), st, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestLeadHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New()
		defer st.Close()
		log := slog.New(slog.NewTextHandler(t.Output(), nil))
		a := join(t, st, tenure.Config{ID: "a", Logger: log})
		b := join(t, st, tenure.Config{ID: "b", Logger: log})
		var wg sync.WaitGroup
		leads := make(chan *tenure.Term, 10)
		for _, m := range []*tenure.Member{a, b} {
			wg.Go(func() {
				err := m.Lead(t.Context(), "job", func(ctx context.Context, term *tenure.Term) error {
					leads <- term
					<-ctx.Done()
					return nil
				})
				if !errors.Is(err, tenure.ErrLeft) {
					t.Errorf("Lead: %v, want ErrLeft", err)
				}
			})
		}
		first := <-leads
		time.Sleep(time.Minute) // virtual
		if err := first.Check(); err != nil {
			t.Fatalf("after a minute of renewals: %v", err)
		}
		if err := map[string]*tenure.Member{"a": a, "b": b}[first.Member()].Resign(t.Context(), "job"); err != nil {
			t.Fatal(err)
		}
		second := <-leads
		if second.Member() == first.Member() || second.Token() <= first.Token() {
			t.Errorf("after %s with %d came %s with %d", first.Member(), first.Token(), second.Member(), second.Token())
		}
		if err := b.Leave(t.Context()); err != nil {
			t.Error(err)
		}
		if err := a.Leave(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

func bid(election string) driver.Bid { return driver.Bid{Election: election} }

func TestMisuse(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		m := b.join(tenure.Config{ID: "a"})
		term := campaign(t, m, "e")
		if _, err := m.Campaign(t.Context(), "e"); !errors.Is(err, tenure.ErrStanding) {
			t.Errorf("a second campaign of one member: %v", err)
		}
		for _, name := range []string{"", "a\x00b", "line\nbreak", "\xff", strings.Repeat("x", 256)} {
			if _, err := m.Campaign(t.Context(), name); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "election") {
				t.Errorf("election %q: %v", name, err)
			}
		}
		if err := m.Resign(t.Context(), "other"); !errors.Is(err, tenure.ErrNotLeading) {
			t.Errorf("resign of what is not led: %v", err)
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Error(err)
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Errorf("resigned twice: %v", err)
		}
		for _, name := range []string{`quo"te's`, "a/b/c", "日本", strings.Repeat("é", 127)} {
			if err := campaign(t, m, name).Resign(t.Context()); err != nil {
				t.Error(err)
			}
		}
		leave(t, m)
		if _, err := m.Campaign(t.Context(), "e"); !errors.Is(err, tenure.ErrLeft) {
			t.Errorf("campaign after Leave: %v", err)
		}
		leave(t, m)
	})
}

func TestConfigIsChecked(t *testing.T) {
	for field, cfg := range map[string]tenure.Config{
		"Config.ID is":         {ID: "a\tb"},
		"Config.TTL is 48h":    {TTL: 48 * time.Hour},
		"Config.TTL is -":      {TTL: -1},
		"Config.RenewInterval": {TTL: 15 * time.Second, RenewInterval: 15 * time.Second},
		"is 13s":               {TTL: 15 * time.Second, RenewInterval: 13 * time.Second},
		"Config.RenewDeadline": {TTL: 15 * time.Second, RenewDeadline: 14 * time.Second},
		"Config.Drift":         {Drift: -1},
		"Config.StopTimeout":   {StopTimeout: -1},
		"Config.StablePeriod":  {StablePeriod: -1},
		"Config.RetryMax":      {RetryMin: 2 * time.Second, RetryMax: time.Second},
	} {
		st := memory.New()
		if strings.HasPrefix(field, "Config.ID") {
			field = "Config.ID"
		}
		_, err := tenure.Join(t.Context(), st, cfg)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%+v: %v, want an error that names %s", cfg, err, field)
		}
		st.Close()
	}
}

func TestWorkReturnsItsError(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		m := b.join(tenure.Config{})
		want := errors.New("disk full")
		err := m.Lead(t.Context(), "e", func(context.Context, *tenure.Term) error { return want })
		if !errors.Is(err, want) {
			t.Errorf("Lead: %v", err)
		}
		if l := b.leader("e"); l != "" {
			t.Errorf("%s leads after the work has returned", l)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_ = m.Lead(t.Context(), "e", func(context.Context, *tenure.Term) error { panic("boom") })
		}()
		if l := b.leader("e"); l != "" {
			t.Errorf("%s leads after a panic", l)
		}
		leave(t, m)
	})
}

func TestPublishAndObserve(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		m := b.join(tenure.Config{ID: "a", Value: []byte("v1")})
		ctx, cancel := context.WithCancel(t.Context())
		var seen []string
		done := make(chan struct{})
		go func() {
			defer close(done)
			for l := range m.Observe(ctx, "e") {
				seen = append(seen, fmt.Sprintf("%s %s %v", l.Leader, l.Value, l.Vacant()))
			}
		}()
		synctest.Wait()
		term := campaign(t, m, "e")
		synctest.Wait()
		if err := term.Publish(t.Context(), []byte("v2")); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if l, err := m.Leader(t.Context(), "e"); err != nil || string(l.Value) != "v2" || l.Token != term.Token() {
			t.Errorf("Leader: %+v, %v", l, err)
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if err := term.Publish(t.Context(), []byte("v3")); !errors.Is(err, tenure.ErrResigned) {
			t.Errorf("Publish after the term: %v", err)
		}
		cancel()
		<-done
		if want := []string{"  true", "a v1 false", "a v2 false", " "}; len(seen) != 4 || !slices.Equal(seen[:3], want[:3]) || !strings.HasSuffix(seen[3], "true") {
			t.Errorf("observed %q", seen)
		}
		leave(t, m)
	})
}
