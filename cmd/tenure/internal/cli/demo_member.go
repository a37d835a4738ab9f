//go:build unix

package cli

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/fence"
)

const (
	demoMemberArg = "__demo-member" // the first argument of a member's process
	demoElection  = "demo"
	demoResource  = "demo_ledger" // also the name of the protected table
	demoTTL       = 2 * time.Second
	demoPause     = 200 * time.Millisecond // between two writes
)

// A memberReport is what a member's process tells the demo, one JSON object a line.
type memberReport struct {
	Event string // ready, leading, wrote, holding, refused, accepted, ended or failed
	Token uint64
	Text  string
}

// A demoMember is the part of a member's process that talks with the demo. It is told "hold" and "go" on standard input, whose end
// is the end of the demo.
type demoMember struct {
	out     *json.Encoder
	db      *sql.DB
	guard   *fence.Guard
	hold    chan struct{}
	release chan struct{}
	renewed chan struct{}
}

// runDemoMember is the main function of a member's process.
func runDemoMember(name string) int {
	m := &demoMember{
		out:  json.NewEncoder(os.Stdout),
		hold: make(chan struct{}, 1), release: make(chan struct{}, 1), renewed: make(chan struct{}, 1),
	}
	ctx, stop := interruptible()
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			switch lines.Text() {
			case "hold":
				m.hold <- struct{}{}
			case "go":
				m.release <- struct{}{}
			}
		}
	}()
	if err := m.run(ctx, name); err != nil && ctx.Err() == nil {
		m.tell("failed", 0, err.Error())
		return 1
	}
	return 0
}

func (m *demoMember) run(ctx context.Context, name string) error {
	o := &options{}
	store, at, err := o.open(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	m.db, m.guard, err = at.kind.database(ctx, at.url)
	if err != nil {
		return err
	}
	defer m.db.Close()
	member, err := tenure.Join(ctx, store, tenure.Config{ID: name, TTL: demoTTL, Observer: func(e tenure.Event) {
		if _, ok := e.(tenure.Renewed); ok {
			select {
			case m.renewed <- struct{}{}:
			default:
			}
		}
	}})
	if err != nil {
		return err
	}
	m.tell("ready", 0, "")
	err = member.Lead(ctx, demoElection, m.lead)
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), demoTTL)
	defer cancel()
	return errors.Join(err, member.Leave(leave))
}

// lead writes to the protected table while the term lasts.
func (m *demoMember) lead(ctx context.Context, term *tenure.Term) error {
	m.tell("leading", term.Token(), "")
	defer func() {
		text := ""
		if cause := context.Cause(term.Context()); cause != nil {
			text = cause.Error()
		}
		m.tell("ended", term.Token(), text)
	}()
	// From now on the guard refuses what the predecessor may still be about to write.
	if err := m.guard.Raise(ctx, m.db, demoResource, term.Token()); err != nil {
		return nil // it is asked to lead again
	}
	for {
		if term.Check() != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.hold:
			return m.staleWrite(ctx, term)
		case <-time.After(demoPause):
		}
		if err := m.write(ctx, term); err == nil {
			m.tell("wrote", term.Token(), "")
		}
	}
}

// staleWrite is the gap that no lease can close: the member looks at its lease, which is fine, and is stopped before it writes.
func (m *demoMember) staleWrite(ctx context.Context, term *tenure.Term) error {
	// Just after a renewal no transaction of this process is open: one that is stopped in the middle of one would hold SQLite's lock.
	select {
	case <-m.renewed:
	default:
	}
	select {
	case <-m.renewed:
	case <-ctx.Done():
		return nil
	}
	if term.Check() != nil {
		return nil //nolint:nilerr // it is asked to lead again
	}
	m.tell("holding", term.Token(), "")
	<-m.release
	// Not with the term's context, which is over: what was already on its way to the database would not have heeded it either.
	switch err := m.write(context.WithoutCancel(ctx), term); {
	case errors.Is(err, fence.ErrStale):
		m.tell("refused", term.Token(), err.Error())
	case err != nil:
		m.tell("failed", term.Token(), err.Error())
	default:
		m.tell("accepted", term.Token(), "")
	}
	return nil
}

func (m *demoMember) write(ctx context.Context, term *tenure.Term) error {
	return m.guard.InTx(ctx, m.db, nil, demoResource, term.Token(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO demo_ledger (member, token) VALUES (?, ?)", term.Member(), int64(term.Token()))
		return err
	})
}

func (m *demoMember) tell(event string, token uint64, text string) {
	_ = m.out.Encode(memberReport{event, token, text}) // nobody listens any more when this fails
}
