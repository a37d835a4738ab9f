package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

func newStore(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Create a store's tables, or print how",
		Args:  subcommandArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usage("say what to do: tenure store init or tenure store schema")
		},
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "init",
		Short: "Create what the store needs, where it is missing",
		Long: `Create what the store needs, where it is missing: the tables of the elections and of
the guard. tenure run does so by itself; this is for who runs tenure as a user that
may not. It can be repeated.`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runStoreInit(cmd, o) },
	}, &cobra.Command{
		Use:   "schema",
		Short: "Print the statements that tenure store init would execute",
		Long: `Print the statements that tenure store init would execute, for somebody who may
execute them. The store is not contacted.`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := o.locate()
			if err != nil {
				return err
			}
			text, err := at.kind.schema(at.url)
			if err != nil {
				return at.failed("print the schema of", err)
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), text)
			return failed(err)
		},
	})
	return cmd
}

func runStoreInit(cmd *cobra.Command, o *options) error {
	at, err := o.locate()
	if err != nil {
		return err
	}
	if err := at.prepare(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), requestLimit)
	defer cancel()
	if err := at.kind.create(ctx, at.url); err != nil {
		return at.failed("create the tables of", err)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is ready\n", at)
	return failed(err)
}
