package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
)

func newStatus(o *options) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status [ELECTION...]",
		Short: "Show who leads",
		Long: `Show who leads the elections, or all that the store knows.

-o json prints [{"election","leader","session","token","acquired_at","expires_at",
"value"}]: leader is "" when vacant, and token then that of the last term; times
are RFC 3339 or null; a value that is not UTF-8 is "base64:" and its base64.

An answer that the store cannot confirm is an error, never an old one.`,
		Args: func(_ *cobra.Command, args []string) error {
			for _, election := range args {
				if err := checkName("ELECTION", election); err != nil {
					return err
				}
			}
			return checkOutput(output)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return runStatus(cmd, o, args, output) },
	}
	outputFlag(cmd, &output)
	return cmd
}

func runStatus(cmd *cobra.Command, o *options, elections []string, output string) error {
	store, at, err := o.look(cmd.Context())
	if err != nil {
		return err
	}
	defer closeStore(store)
	ctx, cancel := context.WithTimeout(cmd.Context(), requestLimit)
	defer cancel()

	var list []tenure.Leadership
	var corrupt []error
	if len(elections) == 0 {
		for rec, err := range store.List(ctx, "") {
			switch {
			case errors.Is(err, driver.ErrCorrupt):
				corrupt = append(corrupt, err)
			case err != nil:
				return at.failed("read", err)
			default:
				list = append(list, leadershipOf(rec))
			}
		}
	}
	for _, election := range elections {
		l, err := tenure.Leader(ctx, store, election)
		switch {
		case errors.Is(err, driver.ErrCorrupt):
			corrupt = append(corrupt, err)
		case err != nil:
			return at.failed("read", err)
		default:
			l.Election = election
			list = append(list, l)
		}
	}
	if len(elections) == 0 && len(list) == 0 && len(corrupt) == 0 && output == "text" {
		fmt.Fprintf(cmd.ErrOrStderr(), "No elections in %s yet: start one with tenure run ELECTION -- COMMAND.\n", at)
		return nil
	}
	if err := printStatus(cmd.OutOrStdout(), output, list); err != nil {
		return failed(err)
	}
	if len(corrupt) > 0 {
		return at.failed("read", errors.Join(corrupt...))
	}
	return nil
}
