// Package worker is what each measured process does; only the SQLite driver beneath it differs.
package worker

import (
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"time"
)

// Result is what one process measured. Times are in microseconds.
type Result struct {
	Waits       []int64 // of each transaction, from before BEGIN IMMEDIATE to after COMMIT
	ResidentKiB int64   // VmRSS at the end
	VersionNano int64   // one PRAGMA data_version that finds nothing new, in nanoseconds
	PollCPU     float64 // share of one core used by reading data_version every 20 ms
	SQLite      string  // the version of SQLite
}

// Main runs one measured process and prints its Result as JSON.
func Main(driverName string) {
	path := flag.String("path", "", "database `file`")
	mode := flag.String("mode", "write", "init, write or poll")
	synchronous := flag.String("synchronous", "FULL", "PRAGMA synchronous")
	own := flag.Bool("own", false, "retry a busy BEGIN IMMEDIATE ourselves every 1 to 2 ms instead of leaving it to the driver's busy timeout")
	row := flag.Int("row", 0, "row to update")
	duration := flag.Duration("duration", 5*time.Second, "how long to measure")
	flag.Parse()
	if err := run(driverName, *path, *mode, *synchronous, *own, *row, *duration); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(driverName, path, mode, synchronous string, own bool, row int, duration time.Duration) error {
	ctx := context.Background()
	db, err := sql.Open(driverName, "file:"+path)
	if err != nil {
		return err
	}
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	timeout := 20_000
	if own {
		timeout = 0
	}
	pragmas := []string{"PRAGMA busy_timeout = 20000", "PRAGMA journal_mode = WAL", "PRAGMA synchronous = " + synchronous, fmt.Sprintf("PRAGMA busy_timeout = %d", timeout)}
	for _, pragma := range pragmas {
		if _, err := conn.ExecContext(ctx, pragma); err != nil {
			return fmt.Errorf("%s: %w", pragma, err)
		}
	}
	var result Result
	if err := conn.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&result.SQLite); err != nil {
		return err
	}
	switch mode {
	case "init":
		for _, statement := range []string{
			"CREATE TABLE sessions (id INTEGER PRIMARY KEY, expires_at INTEGER NOT NULL)",
			"INSERT INTO sessions VALUES (0,0), (1,0), (2,0), (3,0), (4,0), (5,0), (6,0), (7,0)",
		} {
			if _, err := conn.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
	case "write":
		if err := write(ctx, conn, &result, own, row, duration); err != nil {
			return err
		}
	case "poll":
		if err := poll(ctx, conn, &result, duration); err != nil {
			return err
		}
	}
	result.ResidentKiB = residentKiB()
	return json.NewEncoder(os.Stdout).Encode(result)
}

// write renews one row flat out, as fast as the other processes let it.
func write(ctx context.Context, conn *sql.Conn, result *Result, own bool, row int, duration time.Duration) error {
	// A prepared statement, so that the parser is not what is measured.
	update, err := conn.PrepareContext(ctx, "UPDATE sessions SET expires_at = ? WHERE id = ?")
	if err != nil {
		return err
	}
	defer update.Close()
	for begin := time.Now(); time.Since(begin) < duration; {
		t0 := time.Now()
		for {
			_, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE")
			if err == nil {
				break
			}
			if !own || !busy(err) {
				return fmt.Errorf("after %v: begin: %w", time.Since(t0), err)
			}
			time.Sleep(time.Millisecond + rand.N(time.Millisecond))
		}
		if _, err := update.ExecContext(ctx, t0.UnixMicro(), row); err != nil {
			return fmt.Errorf("update: %w", err)
		}
		if _, err := conn.ExecContext(ctx, "COMMIT"); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		result.Waits = append(result.Waits, time.Since(t0).Microseconds())
	}
	return nil
}

// poll measures what a waiting member would cost that looks for news with PRAGMA data_version.
func poll(ctx context.Context, conn *sql.Conn, result *Result, duration time.Duration) error {
	statement, err := conn.PrepareContext(ctx, "PRAGMA data_version")
	if err != nil {
		return err
	}
	defer statement.Close()
	var version int64
	const rounds = 20_000
	begin := time.Now()
	for range rounds {
		if err := statement.QueryRowContext(ctx).Scan(&version); err != nil {
			return err
		}
	}
	result.VersionNano = time.Since(begin).Nanoseconds() / rounds
	runtime.GC()
	used := cpu()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	begin = time.Now()
	for time.Since(begin) < duration {
		<-ticker.C
		if err := statement.QueryRowContext(ctx).Scan(&version); err != nil {
			return err
		}
	}
	result.PollCPU = float64(cpu()-used) / float64(time.Since(begin))
	return nil
}

func busy(err error) bool {
	text := err.Error()
	return strings.Contains(text, "locked") || strings.Contains(text, "BUSY")
}

func residentKiB() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		return 0
	}
	return kib
}
