package cli

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gotenure/tenure/fence"
)

func newFence(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "fence RESOURCE TOKEN [flags] -- COMMAND [ARGS...]",
		Short: "Run a command unless its token is stale",
		Long: `Refuse TOKEN when a higher one has been seen for RESOURCE; else remember it, so that
every lower one is refused from now on, and run COMMAND in tenure's place.

It is for scripts under tenure run:

  tenure fence report-table "$TENURE_TOKEN" -- psql -f report.sql

The check comes before COMMAND, not while it runs: what must not be overtaken
between the two belongs into one transaction with the check (package fence).`,
		Args: func(cmd *cobra.Command, args []string) error {
			return commandArgs("RESOURCE", "TOKEN")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return runFence(cmd.Context(), o, args[0], args[1], args[2:])
		},
	}
}

func runFence(ctx context.Context, o *options, resource, digits string, args []string) error {
	if err := checkName("RESOURCE", resource); err != nil {
		return err
	}
	token, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return usage("TOKEN is %q: give the whole number in $TENURE_TOKEN", digits)
	}
	if err := fence.CheckArguments("RESOURCE", resource, token); err != nil {
		return &exitError{codeUsage, err}
	}
	path, err := lookPath(args[0])
	if err != nil {
		return err
	}
	if err := raise(ctx, o, resource, token); err != nil {
		return err
	}
	return become(path, args)
}

// raise checks the token and raises the bar.
func raise(ctx context.Context, o *options, resource string, token uint64) error {
	at, err := o.locate()
	if err != nil {
		return err
	}
	if at.kind.database == nil {
		return usage("%s has no guard: use a SQL store", at)
	}
	if err := at.prepare(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	db, guard, err := at.kind.database(ctx, at.url)
	if err != nil {
		return at.failed("open", err)
	}
	defer db.Close()
	return at.failed("check the token in", guard.Raise(ctx, db, resource, token))
}

// lookPath finds a command before anything is changed.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrDot):
		return "", fail(codeNotFound, "command %q: found in the current directory only: write ./%s", name, name)
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		if _, err := exec.LookPath("./" + name); err == nil && filepath.Base(name) == name {
			return "", fail(codeNotFound, "command %q: not found in PATH: write ./%s for the one in this directory", name, name)
		}
		return "", fail(codeNotFound, "command %q: not found: check the name and PATH", name)
	}
	return "", fail(codeNotRunnable, "command %q: cannot be executed: %w", name, err)
}
