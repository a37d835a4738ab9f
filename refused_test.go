package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
)

// What a store refuses from the start is a mistake in the configuration, and final. What it refuses to a member whom it has served, such as a permission that was
// withdrawn, is retried until it is granted again (L3).
func TestRefusedLater(t *testing.T) {
	refuse := func(context.Context, string) error {
		return fmt.Errorf("%w: the role lacks a privilege", driver.ErrInvalid)
	}
	t.Run("from the start", func(t *testing.T) {
		bubble(t, func(t *testing.T, b *bench) {
			m := b.join(tenure.Config{ID: "a"})
			b.intercept(refuse, nil)
			if err := m.Lead(t.Context(), "e", untilDone); !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("Lead: %v; want ErrInvalid", err)
			}
			b.intercept(nil, nil)
			if err := m.Leave(t.Context()); err != nil {
				t.Error(err)
			}
		})
	})
	later := func(name string, wait bool, op string, lose func(b *bench, other *tenure.Member)) {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				m, other := b.join(tenure.Config{ID: "a"}), b.join(tenure.Config{ID: "other"})
				if wait {
					if _, err := other.Campaign(t.Context(), "e"); err != nil {
						t.Fatal(err)
					}
				}
				var terms atomic.Int64
				ended := make(chan error, 1)
				go func() {
					ended <- m.Lead(t.Context(), "e", func(ctx context.Context, _ *tenure.Term) error {
						terms.Add(1)
						<-ctx.Done()
						return nil
					})
				}()
				time.Sleep(time.Minute) // virtual
				b.intercept(func(ctx context.Context, what string) error {
					if op == "" || op == what {
						return refuse(ctx, what)
					}
					return nil
				}, nil)
				lose(b, other)
				time.Sleep(10 * time.Minute) // virtual too
				before := terms.Load()
				select {
				case err := <-ended:
					t.Fatalf("Lead has ended: %v", err)
				default:
				}
				b.intercept(nil, nil)
				time.Sleep(10 * time.Minute) // virtual too
				if n := terms.Load() - before; n != 1 {
					t.Errorf("%d terms after the store serves it again; want 1", n)
				}
				leave(t, m, other)
				<-ended //nolint:errcheck // that it ends is all
			})
		})
	}
	later("a leader's sessions", false, "", func(*bench, *tenure.Member) {})
	later("a leader's bids", false, "acquire", func(b *bench, _ *tenure.Member) { b.DeleteRecord("e") })
	later("a waiter's bids", true, "acquire", func(b *bench, other *tenure.Member) {
		if err := other.Resign(b.t.Context(), "e"); err != nil {
			b.t.Error(err)
		}
	})
}

// A store that refuses releases, because a privilege was withdrawn, keeps nobody from ending: the session's end frees the election.
func TestRefusedRelease(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		m := b.join(tenure.Config{ID: "a"})
		b.intercept(func(_ context.Context, op string) error {
			if op == "release" {
				return fmt.Errorf("%w: not authenticated", driver.ErrInvalid)
			}
			return nil
		}, nil)
		ended := make(chan error, 1)
		go func() { ended <- m.Lead(t.Context(), "e", func(context.Context, *tenure.Term) error { return nil }) }()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Lead: %v", err)
			}
		case <-time.After(time.Minute): // virtual
			t.Fatal("Lead has not ended a minute after its work has")
		}
		if leader := b.leader("e"); leader != "" {
			t.Errorf("%s leads", leader)
		}
		leave(t, m)
	})
}
