package bench_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gotenure/tenure/internal/testserver"
	"github.com/jackc/pgx/v5"
)

func BenchmarkZZPieces(b *testing.B) {
	ctx := context.Background()
	database := newDatabase(b, testserver.PostgresURL(b))
	f := newFloor(b, database)
	l := newLine(ctx, b, database, 3)
	_ = l
	c := connect(b, database)
	c2 := connect(b, database)
	c.Exec(ctx, "SET plan_cache_mode = force_generic_plan")
	for b.Loop() {
		var empty, get, upd, floor, batch, exp []time.Duration
		for range 60 {
			time.Sleep(20 * time.Millisecond)
			t := time.Now()
			c.Exec(ctx, "SELECT 1")
			empty = append(empty, time.Since(t))
			time.Sleep(20 * time.Millisecond)
			t = time.Now()
			rows, _ := c.Query(ctx, "SELECT e.name, e.token, e.session, e.member, e.value, e.acquired_at, s.expires_at, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint FROM tenure.elections AS e LEFT JOIN tenure.sessions AS s ON s.id = e.session WHERE e.name = $1", "bench")
			rows.Close()
			get = append(get, time.Since(t))
			time.Sleep(20 * time.Millisecond)
			t = time.Now()
			c.Exec(ctx, "UPDATE floor SET holder = holder WHERE name = $1", "x")
			upd = append(upd, time.Since(t))
			time.Sleep(20 * time.Millisecond)
			floor = append(floor, f.once(ctx, b))
			time.Sleep(20 * time.Millisecond)
			t = time.Now()
			var bt pgx.Batch
			bt.Queue("SELECT 1 FROM floor WHERE name = $1 FOR UPDATE", "x")
			bt.Queue("WITH r AS (UPDATE floor SET holder = holder WHERE name = $1 RETURNING 1) SELECT pg_notify('floor', 'free') FROM r", "x")
			c2.SendBatch(ctx, &bt).Close()
			at := <-f.got
			batch = append(batch, at.Sub(t))
			time.Sleep(20 * time.Millisecond)
			t = time.Now()
			c2.Exec(ctx, "SELECT 1")
			c2.Exec(ctx, "SELECT 1")
			exp = append(exp, time.Since(t))
		}
		slices.Sort(empty)
		fmt.Println("empty", median(empty), "get", median(get), "update", median(upd), "floor", median(floor), "batch", median(batch), "two", median(exp))
	}
}
