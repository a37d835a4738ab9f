package fence

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gotenure/tenure/driver"
)

// ErrStale says that a write was refused because its term is over. It is wrapped in a *StaleError.
var ErrStale = errors.New("stale token")

// A StaleError says what was refused and why. errors.Is(err, ErrStale) holds.
type StaleError struct {
	Resource string // what was guarded; empty when the check was for an election's term
	Election string // whose term is over; empty when the check was for a resource
	Token    uint64 // the token that was refused

	// Seen is the higher token that the resource has seen. For a term it is the election's last token, which is Token itself when the
	// term ended without a successor, and 0 when the election has no record.
	Seen uint64
}

func (e *StaleError) Error() string {
	switch {
	case e.Election == "":
		return fmt.Sprintf("stale token %d: resource %q has seen token %d", e.Token, e.Resource, e.Seen)
	case e.Seen == 0:
		return fmt.Sprintf("stale token %d: election %q has no record", e.Token, e.Election)
	case e.Seen == e.Token:
		return fmt.Sprintf("stale token %d: the term of election %q is over", e.Token, e.Election)
	}
	return fmt.Sprintf("stale token %d: the term of election %q is over, its last token is %d", e.Token, e.Election, e.Seen)
}

// Is makes errors.Is(err, ErrStale) true.
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// On PostgreSQL a refusing statement ends in an error whose text holds one of these marks and the token that was seen. An error, rather than a
// row that says no, so that the server aborts the transaction and skips what was pipelined behind the check.
const (
	staleMark = "tenure: stale, seen "
	overMark  = "tenure: term over, seen "
)

// Explain turns the error of a statement that contains [Guard.CheckSQL], [Guard.With] or [Guard.Clause] into what [Guard.Check] would
// have returned: a *StaleError, or an error that wraps driver.ErrInvalid and names the remedy, or else err itself. It returns nil for nil.
func (g *Guard) Explain(err error, resource string, token uint64) error {
	if seen, ok := seenIn(err, staleMark); ok {
		return &StaleError{Resource: resource, Token: token, Seen: seen}
	}
	return g.remedy(err)
}

// ExplainTerm does for [Guard.TermSQL] and [Guard.TermClause] what Explain does for the others.
func (g *Guard) ExplainTerm(err error, election string, token uint64) error {
	if seen, ok := seenIn(err, overMark); ok {
		return &StaleError{Election: election, Token: token, Seen: seen}
	}
	switch kindOf(err) {
	case missing:
		return fmt.Errorf("%w: the elections' tables %s and %s are not in this database: create them with `tenure store init`, "+
			"or use Check where the elections are elsewhere: %w", driver.ErrInvalid, g.elections, g.sessions, err)
	case forbidden:
		return fmt.Errorf("%w: may not use the elections' tables: GRANT USAGE ON SCHEMA %s, SELECT and UPDATE ON %s, SELECT ON %s to this role: %w",
			driver.ErrInvalid, g.quotedNamespace(), g.elections, g.sessions, err)
	}
	return err
}

func (g *Guard) remedy(err error) error {
	switch kindOf(err) {
	case missing:
		return fmt.Errorf("%w: table %s is not in this database: create it with `tenure store init`, or with CreateTable or the statements of Schema: %w", driver.ErrInvalid, g.fence, err)
	case forbidden:
		return fmt.Errorf("%w: may not use table %s: GRANT USAGE ON SCHEMA %s, SELECT, INSERT, UPDATE ON %[2]s to this role: %[4]w",
			driver.ErrInvalid, g.fence, g.quotedNamespace(), err)
	}
	return err
}

// ExplainCreate does for the statements of [Guard.Schema] what Explain does for the others.
func (g *Guard) ExplainCreate(err error) error {
	switch {
	case err == nil:
		return nil
	case kindOf(err) == forbidden:
		return fmt.Errorf("%w: may not create table %s: GRANT CREATE ON the database and on schema %s to this role, or let another role run the statements of Schema: %w",
			driver.ErrInvalid, g.fence, g.quotedNamespace(), err)
	}
	return fmt.Errorf("creating table %s: %w", g.fence, err)
}

type kind int

const (
	other kind = iota
	missing
	forbidden
)

func kindOf(err error) kind {
	if err == nil {
		return other
	}
	var state interface{ SQLState() string } // the errors of pgx and lib/pq have it
	if !errors.As(err, &state) {
		if strings.Contains(err.Error(), "no such table: ") { // SQLite has one code for all mistakes in a statement
			return missing
		}
		return other
	}
	switch state.SQLState() {
	case "42P01", "3F000": // undefined_table, invalid_schema_name
		return missing
	case "42501": // insufficient_privilege
		return forbidden
	}
	return other
}

func seenIn(err error, mark string) (uint64, bool) {
	if err == nil {
		return 0, false
	}
	_, rest, ok := strings.Cut(err.Error(), mark)
	if !ok {
		return 0, false
	}
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(rest)
	}
	seen, err := strconv.ParseUint(rest[:end], 10, 64)
	return seen, err == nil
}
