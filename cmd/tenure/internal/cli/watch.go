package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
)

// discovery is the time between two looks for elections that are new, when all are watched. Known ones are told of when they change.
const discovery = 2 * time.Second

func newWatch(o *options) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "watch [ELECTION...]",
		Short: "Show who leads, and every change",
		Long: `Show who leads the elections, or all that the store knows, and then a line for each
change until interrupted. "unknown" is when the store cannot be asked.

-o json prints one object a line: those of tenure status, with "time", "state"
("led", "vacant" or "unknown") and "why".`,
		Args: func(_ *cobra.Command, args []string) error {
			for _, election := range args {
				if err := checkName("ELECTION", election); err != nil {
					return err
				}
			}
			return checkOutput(output)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return runWatch(cmd, o, args, output) },
	}
	outputFlag(cmd, &output)
	return cmd
}

// A watcher prints the changes of many elections to one place.
type watcher struct {
	store  driver.Store
	output string
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup

	mu  sync.Mutex
	out io.Writer
}

func runWatch(cmd *cobra.Command, o *options, elections []string, output string) error {
	store, at, err := o.look(cmd.Context())
	if err != nil {
		return err
	}
	defer closeStore(store)
	ctx, cancel := context.WithCancelCause(cmd.Context())
	defer cancel(nil)
	w := &watcher{store: store, output: output, cancel: cancel, out: cmd.OutOrStdout()}
	defer w.tasks.Wait()
	defer cancel(nil)
	if len(elections) == 0 {
		err = w.discover(ctx)
	} else {
		slices.Sort(elections)
		for _, election := range slices.Compact(elections) {
			w.add(ctx, election)
		}
		<-ctx.Done()
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	var interrupted *signalError
	if errors.As(err, &interrupted) {
		return err
	}
	return at.failed("watch", err)
}

// discover watches every election that the store knows or will know. It returns only an error that cannot go away.
func (w *watcher) discover(ctx context.Context) error {
	known := map[string]bool{}
	reachable := true
	for {
		var failure error
		for rec, err := range w.store.List(ctx, "") {
			if err != nil {
				failure = err
				continue
			}
			if !known[rec.Election] {
				known[rec.Election] = true
				w.add(ctx, rec.Election)
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it was told to end
		case errors.Is(failure, driver.ErrInvalid):
			return failure
		case failure != nil && (reachable || len(known) == 0):
			w.print(tenure.Leadership{Err: failure}, failure.Error())
		}
		reachable = failure == nil
		select {
		case <-time.After(discovery - rand.N(discovery/4)):
		case <-ctx.Done():
			return nil
		}
	}
}

func (w *watcher) add(ctx context.Context, election string) {
	w.tasks.Go(func() {
		var last tenure.Leadership
		first := true
		for l := range tenure.Observe(ctx, w.store, election) {
			l.Election = election
			w.print(l, why(last, l, first))
			if errors.Is(l.Err, driver.ErrInvalid) {
				w.cancel(l.Err)
				return
			}
			if l.Err == nil {
				last, first = l, false
			}
		}
	})
}

// why says what is known of how last became now.
func why(last, now tenure.Leadership, first bool) string {
	same := last.Session == now.Session && last.Token == now.Token
	switch {
	case now.Err != nil:
		return now.Err.Error()
	case first:
		return "as found"
	case same && bytes.Equal(last.Value, now.Value):
		return "as before"
	case same:
		return "published another value"
	case now.Vacant():
		return fmt.Sprintf("%s has resigned or its lease has lapsed", last.Leader)
	case last.Vacant():
		return "it was vacant"
	case last.Leader == now.Leader:
		return "won again with a new term"
	}
	return fmt.Sprintf("took over from %s", last.Leader)
}

func (w *watcher) print(l tenure.Leadership, why string) {
	now := time.Now()
	state := "led"
	switch {
	case l.Err != nil:
		state = "unknown"
	case l.Vacant():
		state = "vacant"
	}
	var line []byte
	if w.output == "json" {
		var buffer bytes.Buffer
		encoder := json.NewEncoder(&buffer)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(struct {
			Time  time.Time `json:"time"`
			State string    `json:"state"`
			entry
			Why string `json:"why"`
		}{now.UTC(), state, entryOf(l), why}); err != nil {
			w.cancel(err)
			return
		}
		line = buffer.Bytes()
	} else {
		line = []byte(watchLine(now, l, why))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.out.Write(line); err != nil {
		w.cancel(failed(err))
	}
}

func watchLine(now time.Time, l tenure.Leadership, why string) string {
	election := printable(l.Election)
	if l.Election == "" {
		election = "all elections"
	}
	stamp := now.Format("2006-01-02 15:04:05.000")
	switch {
	case l.Err != nil:
		return fmt.Sprintf("%s  %s  unknown  (%s)\n", stamp, election, why)
	case l.Vacant() && l.Token == 0:
		return fmt.Sprintf("%s  %s  vacant  (%s)\n", stamp, election, why) // nobody has led, or the store has forgotten
	case l.Vacant():
		return fmt.Sprintf("%s  %s  vacant  last token %d  (%s)\n", stamp, election, l.Token, why)
	}
	value := ""
	if len(l.Value) > 0 {
		value = "  value " + printable(valueString(l.Value))
	}
	return fmt.Sprintf("%s  %s  led by %s  token %d%s  (%s)\n", stamp, election, printable(l.Leader), l.Token, value, why)
}
