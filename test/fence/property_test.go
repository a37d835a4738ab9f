package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gotenure/tenure/fence"
)

// The model of the guard: transactions that carry a token, the bar that the committed ones have left, and what was written in the order of the commits.

type modelTx struct {
	token   uint64
	level   sql.IsolationLevel
	raises  bool // its check began when the bar was lower, so that it locks the bar for itself, even if another raises it meanwhile
	checked bool // its check has passed
	dead    bool // refused, or failed: only a rollback can follow
	wrote   bool
	pending chan error // its check waits

	connection *sql.Conn
	pid        int64
}

// passes says whether the check of a transaction may pass now: the bar allows it, and no open transaction has passed with another token.
func passes(bar uint64, open []*modelTx, tx *modelTx) bool {
	if tx.token < bar {
		return false
	}
	for _, other := range open {
		if other != tx && other.checked && !other.dead && (other.token != tx.token || other.raises || tx.raises) {
			return false
		}
	}
	return true
}

// serialization says whether a statement failed because the transaction's snapshot was too old, which then says nothing about its token.
func serialization(tx *modelTx, err error) bool {
	return tx.level > sql.LevelReadCommitted && strings.Contains(err.Error(), "40001")
}

const modelTransactions, modelTokens = 4, 5

// TestInterleavings runs random interleavings of transactions of several tokens, at random isolation levels, against the server and the model. Each step is over when
// every check has returned or is known by the server to wait for a lock.
func TestInterleavings(t *testing.T) {
	db, guard := fencedPostgres(t, fence.Config{})
	execute(t, db, "CREATE TABLE log (token bigint)")
	connections := make([]*sql.Conn, modelTransactions)
	pids := make([]int64, modelTransactions)
	for i := range connections {
		connection, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		if err := connection.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pids[i]); err != nil {
			t.Fatal(err)
		}
		connections[i] = connection
	}
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		resource := fmt.Sprint("resource ", run)
		run := func(connection *sql.Conn, statement string, arguments ...any) {
			if _, err := connection.ExecContext(context.Background(), statement, arguments...); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		var bar uint64
		var log []uint64
		txs := make([]*modelTx, modelTransactions)
		open := func() []*modelTx {
			return slices.DeleteFunc(slices.Clone(txs), func(tx *modelTx) bool { return tx == nil })
		}
		defer func() { // also after a failure, for the next run has the same connections
			for left := open(); len(left) != 0; {
				left = slices.DeleteFunc(left, func(tx *modelTx) bool {
					if tx.pending != nil {
						select {
						case <-tx.pending: //nolint:errcheck // the transaction is rolled back
						case <-time.After(time.Millisecond): // another one's end lets it go on
							return false
						}
					}
					_, _ = tx.connection.ExecContext(context.Background(), "ROLLBACK")
					return true
				})
			}
		}()
		blocked := func(tx *modelTx) (is bool) {
			if err := db.QueryRow("SELECT cardinality(pg_blocking_pids($1)) > 0", tx.pid).Scan(&is); err != nil {
				t.Fatal(err)
			}
			return is
		}
		resolve := func(tx *modelTx, err error) {
			tx.pending = nil
			var stale *fence.StaleError
			switch {
			case err == nil:
				if !passes(bar, open(), tx) {
					t.Fatalf("token %d passed with the bar at %d and open %v", tx.token, bar, describe(open()))
				}
				tx.checked = true
			case errors.As(err, &stale):
				if tx.token >= bar || stale.Seen != bar || stale.Token != tx.token {
					t.Fatalf("%v with the bar at %d", err, bar)
				}
				tx.dead = true
			case serialization(tx, err):
				tx.dead = true
			default:
				t.Fatalf("token %d: %v", tx.token, err)
			}
		}
		// settle returns when every pending check has been resolved or waits.
		settle := func() {
			for deadline := time.Now().Add(patience); ; {
				unsettled := false
				for _, tx := range open() {
					if tx.pending == nil {
						continue
					}
					select {
					case err := <-tx.pending:
						resolve(tx, err)
						unsettled = true // it may have freed others
					default:
						unsettled = unsettled || !blocked(tx)
					}
				}
				if !unsettled {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("no progress: %v", describe(open()))
				}
				time.Sleep(200 * time.Microsecond) // between two looks at the server
			}
		}
		end := func(i int, statement string) {
			tx := txs[i]
			if _, err := tx.connection.ExecContext(context.Background(), statement); err != nil {
				if !serialization(tx, err) {
					t.Fatalf("%s: %v", statement, err)
				}
				tx.dead = true // and rolled back
			}
			if statement == "COMMIT" && !tx.dead {
				if tx.checked {
					bar = max(bar, tx.token)
				}
				if tx.wrote {
					log = append(log, tx.token)
				}
			}
			txs[i] = nil
			settle()
		}
		pick := func(t *rapid.T, fits func(*modelTx) bool) int {
			var fitting []int
			for i, tx := range txs {
				if fits(tx) {
					fitting = append(fitting, i)
				}
			}
			if len(fitting) == 0 {
				t.Skip()
			}
			return rapid.SampledFrom(fitting).Draw(t, "transaction")
		}
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				i := pick(t, func(tx *modelTx) bool { return tx == nil })
				level := rapid.SampledFrom([]sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}).Draw(t, "level")
				txs[i] = &modelTx{token: rapid.Uint64Range(1, modelTokens).Draw(t, "token"), level: level, connection: connections[i], pid: pids[i]}
				run(connections[i], "BEGIN ISOLATION LEVEL "+level.String())
				if rapid.Bool().Draw(t, "snapshot first") {
					run(connections[i], "SELECT count(*) FROM written")
				}
			},
			"check": func(t *rapid.T) {
				tx := txs[pick(t, func(tx *modelTx) bool { return tx != nil && !tx.checked && !tx.dead && tx.pending == nil })]
				alone := !slices.ContainsFunc(open(), func(other *modelTx) bool { return other.pending != nil })
				tx.raises = tx.token > bar
				mayPass := passes(bar, open(), tx)
				raising := slices.ContainsFunc(open(), func(other *modelTx) bool { return other.checked && other.raises })
				tx.pending = make(chan error, 1)
				go func() { tx.pending <- guard.Check(context.Background(), tx.connection, resource, tx.token) }()
				settle()
				// One with an old snapshot does not know better and fails at the end of the wait.
				if waits := tx.pending != nil; waits && alone && tx.level == sql.LevelReadCommitted && (mayPass || tx.token < bar && !raising) {
					t.Fatalf("token %d waits needlessly with the bar at %d and open %v", tx.token, bar, describe(open()))
				}
			},
			"write": func(t *rapid.T) {
				tx := txs[pick(t, func(tx *modelTx) bool { return tx != nil && tx.checked && !tx.dead })]
				_, err := tx.connection.ExecContext(context.Background(), "INSERT INTO written VALUES ($1)", int64(tx.token))
				if err != nil && !serialization(tx, err) {
					t.Fatal(err)
				}
				tx.wrote, tx.dead = err == nil, err != nil
			},
			"commit": func(t *rapid.T) {
				end(pick(t, func(tx *modelTx) bool { return tx != nil && tx.pending == nil && !tx.dead }), "COMMIT")
			},
			"rollback": func(t *rapid.T) {
				end(pick(t, func(tx *modelTx) bool { return tx != nil && tx.pending == nil }), "ROLLBACK")
			},
			"": func(t *rapid.T) {
				if !slices.IsSorted(log) {
					t.Fatalf("committed in this order: %v", log)
				}
				var seen sql.NullInt64
				if err := db.QueryRow("SELECT max(token) FROM tenure.fence WHERE resource = $1", resource).Scan(&seen); err != nil {
					t.Fatal(err)
				}
				if uint64(seen.Int64) != bar {
					t.Fatalf("the bar is %d, the model says %d", seen.Int64, bar)
				}
			},
		})
		// Nobody waits for ever: once those that can end have ended, all checks return.
		for range modelTransactions {
			for i, tx := range txs {
				if tx != nil && tx.pending == nil {
					end(i, "ROLLBACK")
				}
			}
		}
		if left := open(); len(left) != 0 {
			t.Fatalf("still waiting: %v", describe(left))
		}
	})
}

func describe(txs []*modelTx) (all []string) {
	for _, tx := range txs {
		all = append(all, fmt.Sprintf("{token %d, %v, checked %t, dead %t, waits %t}", tx.token, tx.level, tx.checked, tx.dead, tx.pending != nil))
	}
	return all
}

// TestSQLiteInterleavings is the same for SQLite, where nobody waits: who finds the file locked fails at once and rolls back.
func TestSQLiteInterleavings(t *testing.T) {
	db := openSQLite(t, filepath.Join(t.TempDir(), "file.db"), 0)
	guard := newGuard(t, fence.Config{Dialect: fence.SQLite})
	if err := guard.CreateTable(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	execute(t, db, "CREATE TABLE log (resource text, token bigint)")
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		resource := fmt.Sprint("resource ", run)
		var bar uint64
		written := 0
		txs := make([]*modelTx, modelTransactions)
		defer func() {
			for _, tx := range txs {
				if tx != nil {
					_, _ = tx.connection.ExecContext(context.Background(), "ROLLBACK")
					tx.connection.Close()
				}
			}
		}()
		pick := func(t *rapid.T, fits func(*modelTx) bool) int {
			var fitting []int
			for i, tx := range txs {
				if fits(tx) {
					fitting = append(fitting, i)
				}
			}
			if len(fitting) == 0 {
				t.Skip()
			}
			return rapid.SampledFrom(fitting).Draw(t, "transaction")
		}
		fail := func(tx *modelTx, err error) {
			if !busy(err) {
				t.Fatalf("token %d: %v", tx.token, err)
			}
			tx.dead = true
		}
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				i := pick(t, func(tx *modelTx) bool { return tx == nil })
				connection, err := db.Conn(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				txs[i] = &modelTx{token: rapid.Uint64Range(1, modelTokens).Draw(t, "token"), connection: connection}
				mode := rapid.SampledFrom([]string{"BEGIN", "BEGIN; SELECT count(*) FROM log", "BEGIN IMMEDIATE"}).Draw(t, "mode")
				for statement := range strings.SplitSeq(mode, "; ") {
					var err error
					if strings.HasPrefix(statement, "SELECT") {
						var n int
						err = connection.QueryRowContext(context.Background(), statement).Scan(&n)
					} else {
						_, err = connection.ExecContext(context.Background(), statement)
					}
					if err != nil {
						fail(txs[i], err)
						_, _ = connection.ExecContext(context.Background(), "BEGIN")
					}
				}
			},
			"check": func(t *rapid.T) {
				tx := txs[pick(t, func(tx *modelTx) bool { return tx != nil && !tx.dead })]
				err := guard.Check(context.Background(), tx.connection, resource, tx.token)
				var stale *fence.StaleError
				switch {
				case err == nil:
					for _, other := range txs {
						if tx.token < bar || other != nil && other != tx && other.checked {
							t.Fatalf("token %d passed with the bar at %d and open %v", tx.token, bar, other)
						}
					}
					tx.checked = true
				case errors.As(err, &stale):
					if tx.token >= bar || stale.Seen != bar {
						t.Fatalf("%v with the bar at %d", err, bar)
					}
					tx.dead = true
				default:
					fail(tx, err)
				}
			},
			"write": func(t *rapid.T) {
				tx := txs[pick(t, func(tx *modelTx) bool { return tx != nil && tx.checked && !tx.dead })]
				if _, err := tx.connection.ExecContext(context.Background(), "INSERT INTO log VALUES ($1, $2)", resource, int64(tx.token)); err != nil {
					t.Fatalf("a checked transaction has the write lock, yet: %v", err)
				}
			},
			"end": func(t *rapid.T) {
				i := pick(t, func(tx *modelTx) bool { return tx != nil })
				tx := txs[i]
				statement := "ROLLBACK"
				if !tx.dead && rapid.Bool().Draw(t, "commit") {
					statement = "COMMIT"
				}
				if _, err := tx.connection.ExecContext(context.Background(), statement); err != nil {
					t.Fatalf("%s: %v", statement, err)
				}
				if statement == "COMMIT" && tx.checked {
					bar = max(bar, tx.token)
				}
				tx.connection.Close()
				txs[i] = nil
			},
			"": func(t *rapid.T) {
				rows, err := db.Query("SELECT token FROM log WHERE resource = $1 ORDER BY rowid", resource)
				if err != nil {
					t.Fatal(err)
				}
				defer rows.Close()
				var log []uint64
				for rows.Next() {
					var token uint64
					if err := rows.Scan(&token); err != nil {
						t.Fatal(err)
					}
					log = append(log, token)
				}
				if err := rows.Err(); err != nil {
					t.Fatal(err)
				}
				if !slices.IsSorted(log) || len(log) < written {
					t.Fatalf("committed in this order: %v, %d before", log, written)
				}
				written = len(log)
			},
		})
	})
}
