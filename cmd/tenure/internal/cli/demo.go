//go:build unix

package cli

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gotenure/tenure/driver"
)

// demoLimit is when the demo gives up. It needs about 12 s.
const demoLimit = 38 * time.Second

func newDemo() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "See three processes elect a leader, and what happens when it dies",
		Long: `Start three member processes on a temporary SQLite file. Whoever leads writes to a table
that refuses stale tokens. The leader is asked to hand over, then the next is killed
with -9, the next is stopped (SIGSTOP) until it has a successor, then continued, and its
stale write is refused.

Ends by itself within 40 s. Exits with 0 only if all of that was really observed.`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runDemo(cmd.Context(), cmd.OutOrStdout()) },
	}
}

// A demo directs three member processes.
type demo struct {
	*screen
	dir     string
	url     string
	members []*actor
	reports chan actorReport

	leader *actor
	token  uint64
	done   []takeover
}

// A takeover is what the summary tells of one change of leadership.
type takeover struct {
	what string
	took time.Duration
	note string
}

func runDemo(ctx context.Context, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, demoLimit, fmt.Errorf("not over within %v: is this machine overloaded?", demoLimit))
	defer cancel()
	dir, err := os.MkdirTemp("", "tenure-demo-")
	if err != nil {
		return failed(err)
	}
	d := &demo{
		screen: newScreen(out), dir: dir, reports: make(chan actorReport),
		url: "sqlite:" + (&url.URL{Path: filepath.Join(dir, "demo.db")}).EscapedPath(),
	}
	defer func() {
		d.end()
		if rmErr := os.RemoveAll(dir); err == nil && rmErr != nil {
			err = failed(rmErr)
		}
	}()
	err = d.play(ctx)
	d.screen.stop()
	var interrupted *signalError
	switch {
	case errors.As(context.Cause(ctx), &interrupted):
		return interrupted
	case err != nil:
		d.summary()
		return fail(codeNobody, "demo: %w", err)
	}
	d.summary()
	return nil
}

func (d *demo) play(ctx context.Context) error {
	o := &options{store: d.url}
	store, at, err := o.open(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	if err := at.kind.create(ctx, at.url); err != nil {
		return err
	}
	db, _, err := at.kind.database(ctx, at.url)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "CREATE TABLE demo_ledger (seq INTEGER PRIMARY KEY AUTOINCREMENT, member TEXT NOT NULL, token INTEGER NOT NULL)"); err != nil {
		return err
	}
	d.say("Three members stand in one election, on the SQLite file %s. Their TTL is %v.", filepath.Join(d.dir, "demo.db"), demoTTL)
	for _, name := range []string{"anna", "bert", "cleo"} {
		if err := d.hire(name); err != nil {
			return err
		}
	}
	d.screen.live(d.status)
	scenes := []func(context.Context, driver.Store) error{d.firstLeader, d.handover, d.killed, d.stopped}
	for _, scene := range scenes {
		if err := scene(ctx, store); err != nil {
			return err
		}
		if err := d.write(ctx, 3); err != nil {
			return err
		}
	}
	return d.audit(ctx, db)
}

func (d *demo) firstLeader(ctx context.Context, _ driver.Store) error {
	return d.await(ctx, "a first leader and two who wait", func(actorReport) bool {
		return d.leader != nil && !slices.ContainsFunc(d.members, func(a *actor) bool { return a.state == "starting" })
	})
}

func (d *demo) handover(ctx context.Context, store driver.Store) error {
	asker, ok := store.(driver.Asker)
	if !ok {
		return errors.New("the store cannot ask a leader to hand over")
	}
	before := d.leader
	d.say("")
	d.say("1. A graceful handover: %s is asked to resign, as tenure resign does.", before.name)
	for {
		from, token := time.Now(), d.token
		if err := asker.Ask(ctx, demoElection, token); err != nil {
			return err
		}
		if err := d.await(ctx, "the end of "+before.name+"'s work", func(r actorReport) bool { return r.Event == "ended" && r.from == before }); err != nil {
			return err
		}
		stopped := time.Now()
		if err := d.await(ctx, "a successor of "+before.name, func(r actorReport) bool { return r.Event == "leading" }); err != nil {
			return err
		}
		if d.leader == before {
			d.say("Nobody else had asked for it yet: %s is asked again.", before.name)
			continue
		}
		return d.tookOver("handed over on request", token, time.Since(stopped),
			fmt.Sprintf("the leader heard of the request after %.2f s", stopped.Sub(from).Seconds()))
	}
}

func (d *demo) killed(ctx context.Context, _ driver.Store) error {
	before := d.leader
	d.say("")
	d.say("2. The leader dies: kill -9 %d (%s).", before.pid(), before.name)
	from := time.Now()
	if err := before.signal(syscall.SIGKILL); err != nil {
		return err
	}
	before.state = "dead"
	if err := d.successor(ctx, "leader killed with -9", before, from); err != nil {
		return err
	}
	d.say("%s is started again.", before.name)
	d.members = slices.DeleteFunc(d.members, func(a *actor) bool { return a == before })
	before.fire()
	return d.hire(before.name)
}

func (d *demo) stopped(ctx context.Context, _ driver.Store) error {
	before, stale := d.leader, d.token
	d.say("")
	d.say("3. The leader stops in the middle of its work: %s looks at its lease, which is fine, and is about to write.", before.name)
	if err := before.tell("hold"); err != nil {
		return err
	}
	if err := d.await(ctx, "the leader about to write", func(r actorReport) bool { return r.Event == "holding" && r.from == before }); err != nil {
		return err
	}
	d.say("kill -STOP %d (%s), with token %d in its hand.", before.pid(), before.name, stale)
	from := time.Now()
	if err := before.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	before.state = "stopped"
	if err := d.successor(ctx, "leader stopped with SIGSTOP", before, from); err != nil {
		return err
	}
	if err := d.write(ctx, 3); err != nil {
		return err
	}
	d.say("kill -CONT %d (%s): it knows nothing of this and writes, with token %d.", before.pid(), before.name, stale)
	if err := before.signal(syscall.SIGCONT); err != nil {
		return err
	}
	before.state = "waiting"
	if err := before.tell("go"); err != nil {
		return err
	}
	var verdict actorReport
	err := d.await(ctx, "the stale write", func(r actorReport) bool {
		verdict = r
		return r.from == before && (r.Event == "refused" || r.Event == "accepted") && r.Token == stale
	})
	switch {
	case err != nil:
		return err
	case verdict.Event != "refused":
		return fmt.Errorf("the stale write of %s with token %d was accepted", before.name, stale)
	}
	d.say("The table refuses it: %s.", verdict.Text)
	d.done[len(d.done)-1].note = fmt.Sprintf("its stale write, token %d, was refused", stale)
	return nil
}

// successor waits until another member leads.
func (d *demo) successor(ctx context.Context, what string, before *actor, from time.Time) error {
	token := d.token
	if err := d.await(ctx, "a successor of "+before.name, func(r actorReport) bool { return r.Event == "leading" && r.from != before }); err != nil {
		return err
	}
	return d.tookOver(what, token, time.Since(from), "")
}

func (d *demo) tookOver(what string, token uint64, took time.Duration, note string) error {
	if d.token <= token {
		return fmt.Errorf("token %d of %s does not exceed token %d before it", d.token, d.leader.name, token)
	}
	d.say("%s took over %.2f s later.", d.leader.name, took.Seconds())
	d.done = append(d.done, takeover{what, took, note})
	return nil
}

// write waits until the leader has written n times.
func (d *demo) write(ctx context.Context, n int) error {
	return d.await(ctx, "writes of the leader", func(r actorReport) bool {
		if r.from == d.leader && r.Event == "wrote" && r.Token == d.token {
			n--
		}
		return n == 0
	})
}

// await follows the reports until one is what the demo waits for.
func (d *demo) await(ctx context.Context, what string, match func(actorReport) bool) error {
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		case r := <-d.reports:
			if err := d.follow(r); err != nil {
				return err
			}
			if match(r) {
				return nil
			}
		case <-d.screen.ticks():
			d.screen.draw()
		}
	}
}

// follow keeps up with a report.
func (d *demo) follow(r actorReport) error {
	a := r.from
	switch r.Event {
	case "ready":
		a.state = "waiting"
	case "leading":
		a.state = "leading"
		d.leader, d.token = a, r.Token
		d.say("%s leads with token %d.", a.name, r.Token)
	case "wrote":
		a.writes++
	case "ended":
		a.state = "waiting"
		d.say("%s stops working: %s.", a.name, r.Text)
	case "failed":
		return fmt.Errorf("%s: %s", a.name, r.Text)
	}
	d.screen.draw()
	return nil
}

// audit reads the protected table: what it holds must be in the order of the tokens, each of which one member wrote with.
func (d *demo) audit(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, "SELECT member, token FROM demo_ledger ORDER BY seq")
	if err != nil {
		return err
	}
	defer rows.Close()
	writers := map[int64]string{}
	count, last := 0, int64(0)
	for rows.Next() {
		var member string
		var token int64
		if err := rows.Scan(&member, &token); err != nil {
			return err
		}
		if token < last {
			return fmt.Errorf("the table holds a write with token %d after one with token %d", token, last)
		}
		if writer, ok := writers[token]; ok && writer != member {
			return fmt.Errorf("%s and %s have both written with token %d", writer, member, token)
		}
		writers[token], last = member, token
		count++
	}
	if err := rows.Err(); err != nil {
		return err
	}
	d.say("")
	d.say("The table holds %d writes in %d terms, in the order of their tokens, one writer a token.", count, len(writers))
	return nil
}

func (d *demo) summary() {
	if len(d.done) == 0 {
		return
	}
	fmt.Fprintf(d.out, "\n%-27s  %8s\n", "what happened", "takeover")
	for _, t := range d.done {
		line := fmt.Sprintf("%-27s  %6.2f s  %s", t.what, t.took.Seconds(), t.note)
		fmt.Fprintln(d.out, strings.TrimRight(line, " "))
	}
}

// status is the live line.
func (d *demo) status() string {
	line := ""
	for _, a := range d.members {
		mark := a.state
		if a == d.leader && a.state == "leading" {
			mark = fmt.Sprintf("LEADS with token %d, %d writes", d.token, a.writes)
		}
		line += fmt.Sprintf("  %s %s", a.name, mark)
	}
	return line
}
