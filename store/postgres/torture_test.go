package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/gotenure/tenure/driver"
)

// A ledger knows who believes to lead, and until when.
type ledger struct {
	t     testing.TB
	mu    sync.Mutex
	terms map[string]*term
	won   int
}

type term struct {
	token uint64
	until time.Time // released, or the end of what its session was granted
}

// count returns how many terms there were.
func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.won
}

// begin enters a term that its holder may trust until then.
func (l *ledger) begin(election string, token uint64, until time.Time) *term {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := l.terms[election]; last != nil {
		if token <= last.token {
			l.t.Errorf("election %s: token %d after %d", election, token, last.token)
		}
		if now := time.Now(); now.Before(last.until) {
			l.t.Errorf("election %s: token %d begins %v before the end of token %d", election, token, last.until.Sub(now), last.token)
		}
	}
	l.won++
	l.terms[election] = &term{token, until}
	return l.terms[election]
}

// extend is for a renewal that was granted, end for a release that begins.
func (l *ledger) extend(terms map[string]*term, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range terms {
		t.until = until
	}
}

func (l *ledger) end(t *term) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t.until = time.Now()
}

// Sessions acquire, wait, release, lapse and close as fast as they can, on few elections. At no time do two hold one of them, tokens grow,
// no call fails, and the database sees no deadlock.
func TestTorture(t *testing.T) {
	duration := 12 * time.Second
	if testing.Short() {
		duration = 3 * time.Second
	}
	tortureDatabase(t, newDatabase(t), duration)
}

func tortureDatabase(t *testing.T, admin string, duration time.Duration) {
	operator := connect(t, admin)
	const processes, members, elections = 4, 4, 12
	const ttl = time.Second
	l := &ledger{t: t, terms: make(map[string]*term)}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel()
		time.Sleep(duration) // and a slow machine takes longer for terms enough
		for end := time.Now().Add(time.Minute); l.count() < 20 && time.Now().Before(end); {
			time.Sleep(100 * time.Millisecond) // between two looks
		}
	}()
	var wg sync.WaitGroup
	for p := range processes {
		s := openStore(t, admin)
		for m := range members {
			wg.Go(func() {
				for ctx.Err() == nil {
					tortured(ctx, t, s, l, fmt.Sprint(p, "-", m), elections, ttl)
				}
			})
		}
	}
	wg.Wait()
	// What a server process counts it reports when it is idle.
	eventually(t, func() string {
		if n := query[int64](t, operator, `SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`); n < int64(l.won) {
			return fmt.Sprint("the server has reported only ", n, " commits")
		}
		return ""
	})
	if n := query[int64](t, operator, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	if l.won < 20 {
		t.Errorf("only %d terms", l.won)
	}
	t.Logf("%d terms", l.won)
	for _, sql := range []string{
		`SELECT count(*) FROM tenure.waiters AS w JOIN tenure.elections AS e ON e.name = w.election AND e.session = w.session`,
		`SELECT count(*) FROM tenure.waiters AS w WHERE NOT EXISTS (SELECT FROM tenure.sessions AS s WHERE s.id = w.session)`,
		`SELECT count(*) FROM tenure.elections AS e WHERE e.session IS NOT NULL AND NOT EXISTS (SELECT FROM tenure.sessions AS s WHERE s.id = e.session)`,
	} {
		if n := query[int64](t, operator, sql); n != 0 {
			t.Errorf("%d rows of %s", n, sql)
		}
	}
}

// tortured is the life of one session.
func tortured(ctx context.Context, t *testing.T, s driver.Store, l *ledger, member string, elections int, ttl time.Duration) {
	sent := time.Now()
	n, err := s.Open(deadline(t), member, ttl)
	if err != nil {
		t.Error(err)
		return
	}
	lives := 5 + rand.IntN(20)
	held := make(map[string]*term)
	defer func() {
		if rand.IntN(2) == 0 {
			for _, term := range held {
				l.end(term)
			}
			if err := n.Close(deadline(t)); err != nil {
				t.Error(err)
			}
			return
		}
		// Else it lapses; Close frees what this process has of it, much later.
		time.AfterFunc(3*ttl, func() { _ = n.Close(context.Background()) })
	}()
	for range lives {
		if ctx.Err() != nil {
			return
		}
		if time.Since(sent) > ttl/4 {
			now := time.Now()
			_, err := n.KeepAlive(deadline(t))
			if errors.Is(err, driver.ErrSessionLost) && time.Since(sent) > ttl {
				return // this machine was slow
			}
			if err != nil {
				t.Errorf("KeepAlive %v after the last: %v", time.Since(sent), err)
				return
			}
			sent = now
			l.extend(held, sent.Add(ttl))
		}
		election := fmt.Sprint("e", rand.IntN(elections))
		if term := held[election]; term != nil {
			l.end(term)
			delete(held, election)
			if err := n.Release(deadline(t), election, term.token); err != nil {
				t.Errorf("Release: %v", err)
			}
			continue
		}
		wait, cancel := context.WithTimeout(ctx, rand.N(60*time.Millisecond))
		r, err := waitAndAcquire(t, wait, n, election)
		cancel()
		switch {
		case err == nil:
			held[election] = l.begin(election, r.Token, sent.Add(ttl))
		case errors.Is(err, driver.ErrSessionLost):
			if time.Since(sent) < ttl {
				t.Errorf("Acquire %v after the last renewal: %v", time.Since(sent), err)
			}
			return
		default: // it has waited long enough
			if err := n.Release(deadline(t), election, 0); err != nil {
				t.Errorf("Release: %v", err)
			}
		}
	}
}

// waitAndAcquire waits as long as the context lasts; its calls of Acquire are not cut short, so that none is unknown.
func waitAndAcquire(t *testing.T, wait context.Context, n driver.Session, election string) (driver.Record, error) {
	for {
		r, err := n.Acquire(deadline(t), driver.Bid{Election: election, Queue: rand.IntN(4) > 0})
		if !errors.Is(err, driver.ErrHeld) {
			if err != nil && !errors.Is(err, driver.ErrSessionLost) {
				t.Errorf("Acquire: %v", err)
			}
			return r, err
		}
		if err := n.Await(wait, election); err != nil {
			return r, err
		}
	}
}

// A renewal is received before the session expires and committed after it. Whoever wants to take over must not pass it.
func TestRenewalCommitsAfterExpiry(t *testing.T) {
	storeURL, schema := newSchema(t)
	s := openStore(t, storeURL)
	const ttl = 2 * time.Second
	holder := openSession(t, s, "holder", ttl)
	other := openSession(t, openStore(t, storeURL), "other", time.Hour)
	first, err := holder.Acquire(deadline(t), driver.Bid{Election: "e"})
	if err != nil {
		t.Fatal(err)
	}
	operator := connect(t, storeURL)
	tx, err := operator.Begin(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	// The very statement of a renewal, at work when the session expires.
	tag, err := tx.Exec(deadline(t), `UPDATE `+schema+`.sessions SET expires_at = (extract(epoch FROM statement_timestamp()) * 1000000)::bigint + ttl
		WHERE id = $1 AND expires_at > (extract(epoch FROM statement_timestamp()) * 1000000)::bigint`, holder.ID())
	if err != nil || tag.RowsAffected() != 1 {
		t.Fatal(tag, err)
	}
	time.Sleep(ttl + 100*time.Millisecond) // until the old expiry has passed
	for range 3 {
		if r, err := other.Acquire(deadline(t), driver.Bid{Election: "e", Queue: true}); !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("taken over from a renewal under way: %+v, %v", r, err)
		}
	}
	if err := tx.Commit(deadline(t)); err != nil {
		t.Fatal(err)
	}
	// The renewal counted from its statement, so by now it has expired too, or is about to: then, and not before, the other wins.
	r, err := campaign(deadline(t), other, "e")
	if err != nil || r.Token <= first.Token {
		t.Fatal(r, err)
	}
	if _, err := holder.KeepAlive(deadline(t)); !errors.Is(err, driver.ErrSessionLost) {
		t.Fatalf("KeepAlive after the takeover: %v", err)
	}
}

// A takeover is at work when a renewal arrives. The renewal must find nothing to renew.
func TestTakeoverCommitsAfterRenewalArrives(t *testing.T) {
	storeURL, schema := newSchema(t)
	holder := openSession(t, openStore(t, storeURL), "holder", time.Hour)
	if _, err := holder.Acquire(deadline(t), driver.Bid{Election: "e"}); err != nil {
		t.Fatal(err)
	}
	operator := connect(t, storeURL)
	tx, err := operator.Begin(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(deadline(t), `DELETE FROM `+schema+`.sessions WHERE id = $1`, holder.ID()); err != nil {
		t.Fatal(err)
	}
	renewed := make(chan error, 1)
	go func() {
		_, err := holder.KeepAlive(deadline(t))
		renewed <- err
	}()
	watcher := connect(t, storeURL)
	eventually(t, func() string {
		if query[int64](t, watcher, `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%`+schema+`%SET expires_at%'`) == 0 {
			return "the renewal does not wait for the takeover"
		}
		return ""
	})
	if err := tx.Commit(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-renewed; !errors.Is(err, driver.ErrSessionLost) {
		t.Fatalf("KeepAlive: %v; want ErrSessionLost", err)
	}
}
