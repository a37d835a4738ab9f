package bench_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/ncruces/go-sqlite3/driver" // the library that the store uses, as one file must have only one

	"github.com/gotenure/tenure/internal/testserver"
)

const (
	many   = 10_000
	window = 10 * time.Second
	// A member shortens its interval by up to a tenth, at random.
	meanInterval = renewInterval * 95 / 100
)

// What 10,000 elections of one member cost: statements and commits of the database for each interval, which are to be as many as with one election,
// and the member's memory.
func BenchmarkElections(b *testing.B) {
	for _, kind := range []string{"postgres", "sqlite"} {
		for _, held := range []bool{true, false} {
			b.Run(fmt.Sprintf("store=%s/held=%v", kind, held), func(b *testing.B) {
				if _, err := os.Stat("/proc/self/status"); err != nil {
					b.Skip("memory is read in /proc, which this system has not")
				}
				ctx := limit(b)
				var one, all cost
				for b.Loop() {
					one, all = measure(ctx, b, kind, held, 1), measure(ctx, b, kind, held, many)
				}
				b.ReportMetric(float64(all.resident-one.resident)/(many-1)/1024, "KiB/election(<=12)")
				b.ReportMetric(all.renewals, "renewals/interval(=1)")
				if kind == "postgres" {
					b.ReportMetric(all.statements, "statements/interval")
					b.ReportMetric(one.statements, "statements/interval-of-1-election")
				}
				b.ReportMetric(all.cpu, "cpu-ms/interval")
				b.ReportMetric(one.cpu, "cpu-ms/interval-of-1-election")
				b.ReportMetric(float64(one.resident)/(1<<20), "MiB-with-1-election")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// A cost is what a member costs at rest.
type cost struct {
	renewals   float64 // for each interval: statements that renew, or on SQLite commits of any kind
	statements float64 // of any kind, for each interval
	cpu        float64 // of the member's process, in ms for each interval
	resident   int64   // of the member's process, in bytes
}

// A database is where a member's elections are.
type database interface {
	// standing counts elections that are held, or places in their queues.
	standing(b *testing.B, held bool) int64
	// during counts while the function runs.
	during(b *testing.B, f func()) (renewals, statements int64)
}

func measure(ctx context.Context, b *testing.B, kind string, held bool, elections int) cost {
	var url string
	var d database
	if kind == "postgres" {
		url = testserver.StartPostgres(b, "shared_preload_libraries=pg_stat_statements").URL()
		d = newPostgresStatements(b, url)
	} else {
		url = filepath.Join(b.TempDir(), "tenure.db")
		d = newSQLiteCommits(ctx, b, url)
	}
	if !held {
		holdAll(ctx, b, kind, url, elections)
	}
	p := startChild(b, kind, url, elections)
	until(ctx, b, "the child's elections", func() bool { return d.standing(b, held) == int64(elections) })
	time.Sleep(3 * renewInterval) // what standing set going comes to rest

	var c cost
	before := p.cpu(b)
	renewals, statements := d.during(b, func() {
		time.Sleep(window) // what happens meanwhile is counted
	})
	const intervals = float64(window) / float64(meanInterval)
	c.cpu = float64((p.cpu(b) - before).Microseconds()) / 1000 / intervals
	c.renewals, c.statements = float64(renewals)/intervals, float64(statements)/intervals
	c.resident = p.resident(b)
	return c
}
