package postgres

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/sqlstore"
)

// explain wraps what PostgreSQL's error means to the caller, with the remedy.
func explain(err error, schema, role string) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch pg.Code {
	case "42P01", "3F000": // undefined table, invalid schema name
		return fmt.Errorf("%w: schema %q: %w", sqlstore.ErrNoTables, schema, err)
	case "42501": // insufficient privilege
		return fmt.Errorf("%w: role %q lacks a privilege (%w): have the owner run %s", driver.ErrInvalid, role, err, strings.Join(grants(schema, quoted(role)), " "))
	case "42703", "42883", "42804", "42809": // undefined column or function, wrong type or kind of object
		return fmt.Errorf("%w: schema %q has tables that tenure did not make (%w): choose another schema", driver.ErrInvalid, schema, err)
	case "22P05", "22021": // a character that the database's encoding does not have
		return fmt.Errorf("%w: the database's encoding lacks a character of a name (%w): choose another name, or a database with encoding UTF8", driver.ErrInvalid, err)
	case "53300": // too many connections
		return fmt.Errorf("%w: raise max_connections, or give programs fewer connections", err)
	case "25006": // read-only transaction
		return fmt.Errorf("the server takes no writes, as a standby does or one set to default_transaction_read_only: %w", err)
	}
	return err
}

// A redacted error does not show the password. What it wraps is there for errors.Is and errors.As.
type redacted struct {
	text string
	err  error
}

func (e *redacted) Error() string { return e.text }
func (e *redacted) Unwrap() error { return e.err }

// redact hides the secrets in an error's text.
func redact(err error, secrets []string) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, secret := range secrets {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "xxxxx")
		}
	}
	if text == err.Error() {
		return err
	}
	return &redacted{text, err}
}
