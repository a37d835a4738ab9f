package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
)

// successorLimit is how long tenure resign waits for somebody to lead after the term is over.
const successorLimit = 2 * time.Second

func newResign(o *options) *cobra.Command {
	var output string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "resign ELECTION",
		Short: "Ask the leader to hand over",
		Long: fmt.Sprintf(`Ask the leader of ELECTION to hand over, and wait until its term is over. Under tenure
run the command gets SIGTERM and the time of --stop-timeout; then the next in line
leads, which is the former leader when nobody else stands.

Exits with %d when nobody leads, with %d when the term is not over within --wait.`, codeNobody, codeTemporary),
		Args: func(cmd *cobra.Command, args []string) error {
			if err := exactArgs("ELECTION")(cmd, args); err != nil {
				return err
			}
			if err := checkName("ELECTION", args[0]); err != nil {
				return err
			}
			if wait < 0 {
				return usage("--wait is %v: give 0 to return at once, or a time such as 30s", wait)
			}
			return checkOutput(output)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return runResign(cmd, o, args[0], wait, output) },
	}
	cmd.Flags().DurationVar(&wait, "wait", 30*time.Second, "`TIME` to wait for the term to be over; 0: ask only")
	outputFlag(cmd, &output)
	return cmd
}

func runResign(cmd *cobra.Command, o *options, election string, wait time.Duration, output string) error {
	store, at, err := o.look(cmd.Context())
	if err != nil {
		return err
	}
	defer closeStore(store)
	asker, ok := store.(driver.Asker)
	if !ok {
		return fail(codeConfig, "a leader cannot be asked through %s: send SIGTERM to its process", at)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), requestLimit)
	defer cancel()
	before, err := tenure.Leader(ctx, store, election)
	if err != nil {
		return at.failed("read", err)
	}
	if before.Vacant() {
		return fail(codeNobody, "nobody leads %s in %s: tenure status lists the elections", election, at)
	}
	if err := asker.Ask(ctx, election, before.Token); err != nil && !errors.Is(err, driver.ErrNotHeld) {
		return at.failed("write", err)
	}
	now := before
	if wait > 0 {
		if now, err = awaitEnd(cmd.Context(), store, before, wait); err != nil {
			return at.failed("watch", err)
		}
	}
	return printResign(cmd, before, now, wait, output)
}

// awaitEnd waits until the term is over, and then a little for the next to begin. It returns the last known state.
func awaitEnd(ctx context.Context, store driver.Store, term tenure.Leadership, wait time.Duration) (tenure.Leadership, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errWaited)
	defer cancel()
	last := term
	for l := range tenure.Observe(ctx, store, term.Election) {
		switch {
		case errors.Is(l.Err, driver.ErrInvalid), errors.Is(l.Err, driver.ErrCorrupt):
			return last, l.Err
		case l.Err != nil:
			continue // it may come back in time
		}
		last = l
		if l.Token == term.Token && !l.Vacant() {
			continue
		}
		if !l.Vacant() {
			return l, nil
		}
		time.AfterFunc(successorLimit, cancel)
	}
	if cause := context.Cause(ctx); !errors.Is(cause, errWaited) && !errors.Is(cause, context.Canceled) {
		return last, cause // interrupted
	}
	return last, nil
}

var errWaited = errors.New("waited long enough")

func printResign(cmd *cobra.Command, before, now tenure.Leadership, wait time.Duration, output string) error {
	over := now.Vacant() || now.Token != before.Token
	if output == "json" {
		encoder := json.NewEncoder(cmd.OutOrStdout())
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(struct {
			Over   bool  `json:"over"`
			Before entry `json:"before"`
			Now    entry `json:"now"`
		}{over, entryOf(before), entryOf(now)}); err != nil {
			return failed(err)
		}
	}
	was := fmt.Sprintf("%s with token %d", printable(before.Leader), before.Token)
	var text string
	switch {
	case wait == 0 && !over:
		text = fmt.Sprintf("%s was asked to hand over %s", was, printable(before.Election))
	case !over:
		return fail(codeTemporary, "%s was asked to hand over %s and still leads after %v: its work takes its time to stop, or it cannot reach the store",
			was, printable(before.Election), wait)
	case now.Vacant():
		text = fmt.Sprintf("%s was led by %s; nobody leads now", printable(before.Election), was)
	default:
		text = fmt.Sprintf("%s was led by %s; now %s leads with token %d", printable(before.Election), was, printable(now.Leader), now.Token)
	}
	if output == "text" {
		fmt.Fprintln(cmd.OutOrStdout(), text)
	}
	return nil
}
