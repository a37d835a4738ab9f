package postgres

import (
	"context"
	"crypto/rand"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/sqlstore"
)

// A tracer calls attend on a connection that has been told what to listen to, and is not in use yet: at its last question.
type tracer struct {
	once   sync.Once
	attend func()
}

func (*tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, tracedKey{}, strings.Contains(data.SQL, "pg_backend_pid"))
}

func (t *tracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if last, _ := ctx.Value(tracedKey{}).(bool); last {
		t.once.Do(t.attend)
	}
}

type tracedKey struct{}

// Who begins to watch while the connection for notifications is being replaced, after the new one was told what to listen to, hears all the same.
func TestAttendedWhileReconnecting(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	config, err := pgx.ParseConfig(testserver.PostgresURL(t))
	if err != nil {
		t.Fatal(err)
	}
	name := "attended " + rand.Text()
	heard := make(chan sqlstore.Event, 1)
	l := &listener{
		channel: name, own: name + ".own", log: slog.New(slog.DiscardHandler), pushing: func(bool) {},
		heard: func(e sqlstore.Event) {
			select {
			case heard <- e:
			default:
			}
		},
	}
	trace := &tracer{attend: func() {
		if err := l.attend(ctx); err == nil {
			t.Error("the connection is in use already: this tests nothing")
		}
	}}
	l.connect = func(ctx context.Context) (*pgx.Conn, error) {
		traced := config.Copy()
		traced.Tracer = trace
		return pgx.ConnectConfig(ctx, traced)
	}
	first, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.listen(ctx, first); err != nil {
		t.Fatal(err)
	}
	pid := first.PgConn().PID()
	l.start(first)
	defer l.close()
	operator, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer hangUp(operator)
	if _, err := operator.Exec(ctx, "SELECT pg_terminate_backend($1)", int64(pid)); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := operator.Exec(ctx, "SELECT pg_notify($1, $2)", name, string(sqlstore.Taken)+" session 5 0 0 orders"); err != nil {
			t.Fatal(err)
		}
		select {
		case e := <-heard:
			if e.Election != "orders" {
				t.Errorf("heard of %+v", e)
			}
			return
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("nothing is heard")
		}
	}
}
