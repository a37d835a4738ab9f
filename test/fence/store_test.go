package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/fence"
	"github.com/gotenure/tenure/store/postgres"
	"github.com/gotenure/tenure/store/sqlite"
)

// onStores runs a test against each SQL store with the guard for the same database.
func onStores(t *testing.T, test func(t *testing.T, store driver.Store, db *sql.DB, guard *fence.Guard)) {
	t.Run("postgres", func(t *testing.T) {
		location := postgresURL(t)
		store, err := postgres.Open(t.Context(), location)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		test(t, store, openPostgres(t, location), newGuard(t, fence.Config{Dialect: fence.Postgres}))
	})
	t.Run("sqlite", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "file.db")
		store, err := sqlite.Open(t.Context(), "sqlite://"+path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		test(t, store, openSQLite(t, path, 20*time.Second), newGuard(t, fence.Config{Dialect: fence.SQLite}))
	})
}

func openSession(t *testing.T, store driver.Store, member string, ttl time.Duration) driver.Session {
	t.Helper()
	session, err := store.Open(t.Context(), member, ttl)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close(context.Background()) })
	return session
}

func acquire(t *testing.T, session driver.Session) uint64 {
	t.Helper()
	record, err := session.Acquire(t.Context(), driver.Bid{Election: "e", Queue: true})
	if err != nil {
		t.Fatal(err)
	}
	return record.Token
}

func checkTerm(t *testing.T, db *sql.DB, guard *fence.Guard, token uint64) error {
	t.Helper()
	tx := begin(t, db, 0)
	defer tx.Rollback()
	err := guard.CheckTerm(t.Context(), tx, "e", token)
	if err != nil {
		return err
	}
	return tx.Commit()
}

// A successor that has been elected, and has not written anything, is enough to refuse the leader before it.
func TestElectedSuccessorRefusesPredecessor(t *testing.T) {
	onStores(t, func(t *testing.T, store driver.Store, db *sql.DB, guard *fence.Guard) {
		first, second := openSession(t, store, "first", time.Minute), openSession(t, store, "second", time.Minute)
		token := acquire(t, first)
		if err := checkTerm(t, db, guard, token); err != nil {
			t.Fatal(err)
		}
		if _, err := second.Acquire(t.Context(), driver.Bid{Election: "e", Queue: true}); !errors.Is(err, driver.ErrHeld) {
			t.Fatal(err)
		}
		if err := first.Release(t.Context(), "e", token); err != nil {
			t.Fatal(err)
		}
		next := acquire(t, second)
		wantStale(t, checkTerm(t, db, guard, token), fence.StaleError{Election: "e", Token: token, Seen: next})
		if err := checkTerm(t, db, guard, next); err != nil {
			t.Fatal(err)
		}
		if err := second.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantStale(t, checkTerm(t, db, guard, next), fence.StaleError{Election: "e", Token: next, Seen: next})
	})
}

// A term whose session has expired is over, whether or not anybody has noticed.
func TestExpiredTermIsRefused(t *testing.T) {
	onStores(t, func(t *testing.T, store driver.Store, db *sql.DB, guard *fence.Guard) {
		token := acquire(t, openSession(t, store, "first", time.Second))
		for deadline := time.Now().Add(patience); ; {
			err := checkTerm(t, db, guard, token)
			if err != nil {
				wantStale(t, err, fence.StaleError{Election: "e", Token: token, Seen: token})
				return
			}
			if time.Now().After(deadline) {
				t.Fatal("the term does not end")
			}
			time.Sleep(20 * time.Millisecond) // between two looks
		}
	})
}

// A leader that is stopped in the middle of a checked transaction keeps its successor out beyond its TTL, until the server ends the transaction.
func TestTakeoverWaitsForCheckedTransaction(t *testing.T) {
	location := postgresURL(t)
	store, err := postgres.Open(t.Context(), location)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	db := openPostgres(t, location)
	guard := newGuard(t, fence.Config{Dialect: fence.Postgres, IdleTimeout: 3 * time.Second})
	first, second := openSession(t, store, "first", time.Second), openSession(t, store, "second", time.Minute)
	token := acquire(t, first)
	stopped := begin(t, db, 0)
	if err := guard.CheckTerm(t.Context(), stopped, "e", token); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := second.Acquire(ctx, driver.Bid{Election: "e", Queue: true})
		cancel()
		if err == nil {
			break
		}
		if time.Since(began) > patience {
			t.Fatalf("no takeover: %v", err)
		}
		time.Sleep(20 * time.Millisecond) // between two attempts
	}
	if err := stopped.Commit(); err == nil {
		t.Fatal("a transaction of the old term was committed after the takeover")
	}
	if waited := time.Since(began); waited < 2*time.Second {
		t.Fatalf("the takeover came after %v, before the server can have ended the transaction", waited)
	}
}

// A leader with always some checked transactions open does not keep candidates from queueing, nor itself from being asked to resign. Without the gate
// that Dialect.Gate takes, both wait for a moment without any transaction, which does not come.
func TestBusyLeaderDoesNotStarveOthers(t *testing.T) {
	location := postgresURL(t)
	store, err := postgres.Open(t.Context(), location)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	db := openPostgres(t, location)
	guard := newGuard(t, fence.Config{Dialect: fence.Postgres})
	leader, candidate := openSession(t, store, "leader", time.Minute), openSession(t, store, "candidate", time.Minute)
	token := acquire(t, leader)
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	defer writers.Wait()
	defer stop()
	const side = 40
	busy := make(chan struct{}, side)
	for range side {
		writers.Go(func() {
			for first := true; ctx.Err() == nil; first = false {
				tx, err := db.Begin()
				if err != nil {
					t.Error(err)
					return
				}
				if err := guard.CheckTerm(context.Background(), tx, "e", token); err != nil {
					t.Error(err)
				}
				if first {
					busy <- struct{}{}
				}
				time.Sleep(5*time.Millisecond + rand.N(40*time.Millisecond)) // the work of the transaction
				tx.Rollback()
			}
		})
	}
	for range side {
		<-busy
	}
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := candidate.Acquire(limit, driver.Bid{Election: "e", Queue: true}); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Acquire: %v, want ErrHeld", err)
	}
	if err := store.Ask(limit, "e", token); err != nil {
		t.Errorf("Ask: %v", err)
	}
}
