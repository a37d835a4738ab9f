package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/fence"
)

// Exit codes. Those of sysexits.h are chosen because hardly any command uses them: tenure run and tenure fence pass their command's
// code on.
const (
	codeNobody      = 1   // there is no leader to ask
	codeUsage       = 64  // wrong argument or flag: nothing was changed
	codeData        = 65  // a record in the store is corrupt
	codeUnavailable = 69  // the store cannot be reached
	codeSoftware    = 70  // anything else
	codeTemporary   = 75  // leadership lost; not done in time
	codeRefused     = 77  // the guard refused a stale token
	codeConfig      = 78  // the store cannot be used as it is
	codeNotRunnable = 126 // the command cannot be executed
	codeNotFound    = 127 // there is no such command
)

const exitCodesText = `Exit codes of tenure:

    0  done
    1  tenure resign: nobody leads, so there is nobody to ask
       tenure demo: something was not observed
   64  wrong argument or flag; nothing was changed
   65  a record in the store is corrupt; the message names it
   69  the store cannot be reached
   70  any other failure of tenure itself
   75  tenure run --exit-on-loss: the command had to stop because leadership was
       lost or handed over; tenure resign: the term was not over within --wait
   77  tenure fence: the guard refused the token as stale
   78  the store cannot be used as it is: wrong URL, schema of another version,
       missing permission; the message names the remedy
  126  the command cannot be executed
  127  the command was not found
  128+n  ended by signal n

tenure run and tenure fence exit with their command's own code once it has run
(128+n when signal n ended it).
`

func newExitCodes() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "What the exit codes mean (a help topic)", Long: exitCodesText}
}

// An exitError ends the command with a code of its own. An empty text prints nothing.
type exitError struct {
	code int
	err  error // nil: nothing to say
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

// Unwrap returns the cause.
func (e *exitError) Unwrap() error { return e.err }

func fail(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}

func usage(format string, args ...any) error { return fail(codeUsage, format, args...) }

// storeFailed classifies an error of a store.
func storeFailed(err error) error {
	var exit *exitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit):
		return err
	case errors.Is(err, fence.ErrStale):
		return &exitError{codeRefused, err}
	case errors.Is(err, driver.ErrInvalid), errors.Is(err, errors.ErrUnsupported):
		return &exitError{codeConfig, err}
	case errors.Is(err, driver.ErrCorrupt):
		return &exitError{codeData, err}
	}
	return &exitError{codeUnavailable, err}
}

// failed classifies an error that is not a store's.
func failed(err error) error {
	var exit *exitError
	if err == nil || errors.As(err, &exit) {
		return err
	}
	return &exitError{codeSoftware, err}
}

// checkName is for names on the command line.
func checkName(field, name string) error {
	if err := driver.CheckName(field, name); err != nil {
		return &exitError{codeUsage, err}
	}
	return nil
}
