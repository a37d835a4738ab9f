package cli

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
)

type runOptions struct {
	*options
	id          string
	ttl         time.Duration
	stopTimeout time.Duration
	grace       time.Duration
	value       string
	exitOnLoss  bool
	keep        bool
	logLevel    string

	election string
	path     string // of the command
	args     []string
}

func newRun(o *options) *cobra.Command {
	r := &runOptions{options: o}
	cmd := &cobra.Command{
		Use:   "run ELECTION [flags] -- COMMAND [ARGS...]",
		Short: "Wait for leadership, then run a command while it lasts",
		Long: `Wait until this member leads ELECTION, then run COMMAND, with TENURE_ELECTION,
TENURE_MEMBER and TENURE_TOKEN in its environment.

When leadership is lost, COMMAND's process group gets SIGTERM, and SIGKILL in time
to be dead before anybody else can lead; then tenure stands again. All that COMMAND
has started goes with it, also what left the process group (on Linux). This holds
when tenure itself is killed or stopped: a guardian, a second small process, sees to it.

When COMMAND ends by itself, tenure resigns and exits with its code. COMMAND has
to stay in the foreground: what it leaves running when it ends is killed.

Signals are passed on to COMMAND. SIGTERM to tenure stops COMMAND, hands over and
exits. Exit codes: tenure help exit-codes.`,
		Example: `  tenure run nightly-report -- ./report.sh --all
  tenure run consumer --ttl 30s --keep --store postgres://app@db/app -- ./consumer`,
		Args: commandArgs("ELECTION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.election = args[0]
			r.args = args[1:]
			return r.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.id, "id", "", "name of this member (default host name, process ID and a random suffix)")
	f.DurationVar(&r.ttl, "ttl", 15*time.Second, "within what `TIME` a leader that died is replaced")
	f.DurationVar(&r.stopTimeout, "stop-timeout", 0, "`TIME` for the command to stop once leadership is lost, out of the TTL\n(default a fifth of --ttl)")
	f.DurationVar(&r.grace, "grace", 10*time.Second, "`TIME` for the command to stop after SIGTERM to tenure, leading all the while")
	f.StringVar(&r.value, "value", "", "`TEXT` to publish while leading, such as an address")
	f.BoolVar(&r.exitOnLoss, "exit-on-loss", false, fmt.Sprintf("exit with code %d, instead of standing again, when leadership was lost", codeTemporary))
	f.BoolVar(&r.keep, "keep", false, "stand again, after a pause, when the command ends by itself")
	f.StringVar(&r.logLevel, "log-level", "info", "`LEVEL` of the log on standard error: debug, info, warn or error")
	_ = cmd.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// validate checks all that can be checked without a store.
func (r *runOptions) validate() (slog.Level, error) {
	var level slog.Level
	if err := checkName("ELECTION", r.election); err != nil {
		return level, err
	}
	if r.id != "" {
		if err := checkName("--id", r.id); err != nil {
			return level, err
		}
	}
	if err := level.UnmarshalText([]byte(r.logLevel)); err != nil {
		return level, usage("--log-level is %q: use debug, info, warn or error", r.logLevel)
	}
	if r.ttl <= 0 {
		return level, usage("--ttl is %v: give a time above zero, such as 15s", r.ttl)
	}
	if r.stopTimeout == 0 {
		r.stopTimeout = r.ttl / 5
	}
	// The renewal interval is a third of the TTL and must leave room for two renewals before the command has to stop.
	if r.stopTimeout < 0 || r.stopTimeout > r.ttl/2 {
		return level, usage("--stop-timeout is %v: give a time up to half of --ttl, which is %v", r.stopTimeout, r.ttl)
	}
	if r.grace <= 0 {
		return level, usage("--grace is %v: give a time above zero, such as 10s", r.grace)
	}
	if runtime.GOOS == "windows" {
		return level, usage("tenure run needs process groups and signals, which Windows does not have: use the library, or run it elsewhere")
	}
	path, err := lookPath(r.args[0])
	r.path = path
	return level, err
}

// checkTTL names the flag where package tenure would name its own field.
func checkTTL(ttl time.Duration, info driver.Info) error {
	if ttl < info.MinTTL || ttl > info.MaxTTL {
		return usage("--ttl is %v: %s takes %v to %v", ttl, info.Name, info.MinTTL, info.MaxTTL)
	}
	return nil
}

func (r *runOptions) run(ctx context.Context) error {
	level, err := r.validate()
	if err != nil {
		return err
	}
	store, at, err := r.open(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	if err := checkTTL(r.ttl, store.Info()); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	job := &job{options: r, log: log, drift: r.ttl / 100}
	join, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	member, err := tenure.Join(join, store, tenure.Config{
		ID: r.id, TTL: r.ttl, Drift: job.drift, StopTimeout: r.stopTimeout, Value: []byte(r.value), Logger: log,
	})
	if err != nil {
		return at.failed("join", err)
	}
	for _, caveat := range store.Info().Caveats {
		log.Debug("caveat of the store", "store", at.String(), "caveat", caveat)
	}
	log.Info("standing", "election", r.election, "member", member.ID(), "ttl", r.ttl, "store", at.String())
	err = job.run(context.WithoutCancel(ctx), member)
	// The election is free by now; what is left is the session.
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(r.ttl, requestLimit))
	defer cancel()
	if left := member.Leave(leave); left != nil {
		log.Warn("could not leave the store", "err", left)
	}
	return err
}
