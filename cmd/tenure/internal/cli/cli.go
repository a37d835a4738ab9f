// Package cli is the command tenure: one file per subcommand, and the only place that imports every driver.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gotenure/tenure/cmd/tenure/internal/supervise"
)

// Main runs the command line and returns the exit code.
func Main(args []string) int {
	if len(args) > 1 && args[1] == supervise.GuardianArg {
		return supervise.Guard(args[2:])
	}
	if len(args) == 3 && args[1] == demoMemberArg {
		return runDemoMember(args[2])
	}
	root := newRoot()
	root.SetArgs(args[1:])
	ctx, stop := interruptible()
	err := root.ExecuteContext(ctx)
	stop()
	if err == nil {
		return 0
	}
	code := codeUsage // what cobra itself finds wrong is how it was called
	var exit *exitError
	var sig *signalError
	switch {
	case errors.As(err, &sig):
		code = 128 + int(sig.signal)
	case errors.As(err, &exit):
		code = exit.code
	}
	if text := err.Error(); text != "" && sig == nil {
		fmt.Fprintln(os.Stderr, "tenure: "+text)
	}
	return code
}

// options are those of every subcommand.
type options struct {
	store string // URL; empty: the environment's or the default
}

func newRoot() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:   "tenure",
		Short: "Run a job on one of several replicas; see and change who leads",
		Long: `Tenure elects one leader among processes that share a store (--store): a SQLite file
on one machine, or a server that several machines reach.

  tenure run nightly-report -- ./report.sh    run on all replicas: one of them works
  tenure status                               who leads what
  tenure demo                                 see it happen

A leader that dies is replaced within its TTL. Exit codes: tenure help exit-codes.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          subcommandArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return usage("no command given: see above")
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%v: see %s --help", err, cmd.CommandPath())
	})
	root.CompletionOptions.HiddenDefaultCmd = false
	root.Version = versionInfo().String()
	root.SetVersionTemplate("{{.Version}}\n")
	for _, cmd := range []*cobra.Command{newRun(o), newStatus(o), newWatch(o), newResign(o), newFence(o), newStore(o)} {
		cmd.PersistentFlags().StringVar(&o.store, "store", "",
			"store `URL`:\n  "+strings.Join(knownStores(), "\n  ")+"\n(default $"+storeVariable+", else a SQLite file in your state directory)")
		root.AddCommand(cmd)
	}
	root.AddCommand(newServe(), newDemo(), newVersion(), newExitCodes())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			cmd.Args, cmd.SuggestionsMinimumDistance = subcommandArgs, 1 // the names of shells are short
			cmd.RunE = func(cmd *cobra.Command, _ []string) error {
				return usage("say which shell: see %s --help", cmd.CommandPath())
			}
		case "help":
			cmd.Args = func(cmd *cobra.Command, args []string) error {
				if found, rest, err := root.Find(args); err != nil || len(rest) > 0 {
					return usage("there is no help on %q: see %s --help", strings.Join(args, " "), found.CommandPath())
				}
				return nil
			}
		}
	}
	return root
}

// subcommandArgs is for a command that only has subcommands: what is left is none of them.
func subcommandArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	remedy := fmt.Sprintf("see %s --help", cmd.CommandPath())
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = 2
	}
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		remedy = fmt.Sprintf("did you mean %s %s?", cmd.CommandPath(), strings.Join(similar, " or "))
	}
	return usage("there is no command %q: %s", cmd.CommandPath()+" "+args[0], remedy)
}

// A signalError is why a command was interrupted.
type signalError struct{ signal syscall.Signal }

func (e *signalError) Error() string { return "interrupted by " + e.signal.String() }

// interruptible returns a context that SIGINT and SIGTERM cancel, with a *signalError as cause. A second signal ends the process at once.
func interruptible() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		sig, ok := <-signals
		if !ok {
			return
		}
		signal.Stop(signals)
		s, _ := sig.(syscall.Signal)
		cancel(&signalError{s})
	}()
	return ctx, func() { signal.Stop(signals); cancel(nil) }
}

// outputFlag adds -o to a command that prints something.
func outputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "text", "`FORMAT`: text or json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

func checkOutput(output string) error {
	if output != "text" && output != "json" {
		return usage("--output is %q: use text or json", output)
	}
	return nil
}

// exactArgs is cobra.ExactArgs with a message that says what is missing.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usage("%s is missing: %s", strings.Join(names[len(args):], " "), cmd.UseLine())
		case len(args) > len(names):
			return usage("%q is one argument too many: %s", args[len(names)], cmd.UseLine())
		}
		return nil
	}
}

// commandArgs checks "NAMES… -- CMD ARGS…".
func commandArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		dash := cmd.ArgsLenAtDash()
		if dash < 0 {
			if len(args) > len(names) {
				return usage("write -- before the command: tenure %s %s -- %s", cmd.Name(), strings.Join(args[:len(names)], " "), strings.Join(args[len(names):], " "))
			}
			return usage("-- and the command are missing: %s", cmd.UseLine())
		}
		if err := exactArgs(names...)(cmd, args[:dash]); err != nil {
			return err
		}
		if len(args) == dash {
			return usage("there is no command after --: %s", cmd.UseLine())
		}
		return nil
	}
}
