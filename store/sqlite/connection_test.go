package sqlite

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gotenure/tenure/store/sqlstore"
)

// A disk that hangs keeps no caller: each gets away when its context ends, and all goes on when the disk does.
func TestHangingDisk(t *testing.T) {
	store, err := New(context.Background(), filepath.Join(t.TempDir(), "tenure.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	c := store.engine.current.Load().work
	hang := make(chan struct{})
	entered := make(chan struct{})
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	begin := time.Now()
	// As in a system call, nothing interrupts it.
	_, err = c.do(soon(), func(context.Context, *connection) ([][]sqlstore.Row, error) {
		close(entered)
		<-hang
		return nil, nil
	})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("the call in the disk: %v; want one that wraps DeadlineExceeded", err)
	}
	<-entered
	select1 := sqlstore.Script{Stmts: []sqlstore.Stmt{{SQL: "SELECT 1"}}}
	if _, err := c.run(soon(), select1); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "other calls") {
		t.Errorf("the call behind it: %v; want one that wraps DeadlineExceeded", err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("they returned after %v", took)
	}
	// Renewals go another way.
	if _, err := store.engine.Run(context.Background(), sqlstore.Script{Urgent: true, Stmts: select1.Stmts}); err != nil {
		t.Errorf("a renewal meanwhile: %v", err)
	}
	close(hang)
	if _, err := c.run(context.Background(), select1); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// A script whose context ends in its middle changes nothing.
func TestCancelledScript(t *testing.T) {
	store, err := New(context.Background(), filepath.Join(t.TempDir(), "tenure.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	// The second statement takes for ever.
	_, err = store.engine.Run(ctx, sqlstore.Script{Stmts: []sqlstore.Stmt{
		{SQL: "UPDATE tenure_token SET last = 0"},
		{SQL: "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"},
	}})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Run: %v; want DeadlineExceeded", err)
	}
	rows, err := store.engine.Run(context.Background(), sqlstore.Script{ReadOnly: true, Stmts: []sqlstore.Stmt{{SQL: "SELECT last FROM tenure_token"}}})
	if err != nil || rows[0][0][0] == int64(0) {
		t.Errorf("after the script there is %v, %v; want what was there before", rows, err)
	}
	if _, err := store.engine.Run(context.Background(), sqlstore.Script{Stmts: []sqlstore.Stmt{{SQL: "UPDATE tenure_token SET last = last + 1"}}}); err != nil {
		t.Errorf("the next script: %v", err)
	}
}
