// Command sqlitedrivers measures the Go drivers of SQLite that package store/sqlite could stand on, among processes: how long the
// longest transaction waits when several processes write one file flat out (a renewal must not wait long), and what it
// costs to look for news.
//
//	go run . [-duration 5s] [-processes 4] [-drivers ncruces,mattn,modernc] [-dir DIR]
//
// It builds one program per driver, so that none pays for another, and prints Markdown tables. Run it from its own directory. The
// mattn driver needs a C compiler.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gotenure/tenure/bench/sqlitedrivers/worker"
)

func main() {
	duration := flag.Duration("duration", 5*time.Second, "how long each combination is measured")
	processes := flag.Int("processes", 4, "how many processes write, at most 8")
	drivers := flag.String("drivers", "ncruces,mattn,modernc", "which drivers, separated by commas")
	dir := flag.String("dir", "", "where the database files go; default: a temporary directory")
	modfile := flag.String("modfile", "", "build with this go.mod instead, to try other versions")
	flag.Parse()
	if err := run(*duration, *processes, strings.Split(*drivers, ","), *dir, *modfile); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(duration time.Duration, processes int, drivers []string, dir, modfile string) error {
	temporary, err := os.MkdirTemp(dir, "sqlitedrivers")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary) //nolint:errcheck // what is left of a directory for temporary files does no harm
	for _, name := range drivers {
		build := exec.Command("go", "build", "-o", filepath.Join(temporary, name), "./"+name)
		build.Env = append(os.Environ(), "GOWORK=off")
		if modfile != "" {
			build.Args = slices.Insert(build.Args, 2, "-modfile="+modfile)
		}
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}

	fmt.Printf("%d processes flat out on one file, each transaction BEGIN IMMEDIATE, UPDATE, COMMIT, %v a line:\n\n", processes, duration)
	fmt.Println("| driver | SQLite | synchronous | busy | longest wait | 99.9 % | median | transactions/s | slowest process's share |")
	fmt.Println("| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |")
	for _, name := range drivers {
		for _, synchronous := range []string{"FULL", "NORMAL"} {
			for _, own := range []bool{false, true} {
				if err := contend(temporary, name, synchronous, own, processes, duration); err != nil {
					fmt.Printf("| %s | | %s | %s | %v |\n", name, synchronous, busyName(own), err)
				}
			}
		}
	}

	fmt.Printf("\nOne process that looks for news:\n\n")
	fmt.Println("| driver | PRAGMA data_version | every 20 ms | resident |")
	fmt.Println("| --- | ---: | ---: | ---: |")
	for _, name := range drivers {
		path := filepath.Join(temporary, name+"-poll.db")
		if _, err := child(temporary, name, "-mode=init", "-path="+path); err != nil {
			return err
		}
		result, err := child(temporary, name, "-mode=poll", "-path="+path, "-duration="+duration.String())
		if err != nil {
			return err
		}
		fmt.Printf("| %s | %.1f µs | %.2f %% of a core | %.1f MiB |\n", name, float64(result.VersionNano)/1000, result.PollCPU*100, float64(result.ResidentKiB)/1024)
	}
	return nil
}

// contend prints one line of the first table.
func contend(dir, name, synchronous string, own bool, processes int, duration time.Duration) error {
	path := filepath.Join(dir, fmt.Sprintf("%s-%s-%t.db", name, synchronous, own))
	if _, err := child(dir, name, "-mode=init", "-path="+path); err != nil {
		return err
	}
	results := make([]worker.Result, processes)
	errs := make(chan error, processes)
	for i := range processes {
		go func() {
			var err error
			results[i], err = child(dir, name, "-path="+path, "-synchronous="+synchronous, fmt.Sprintf("-own=%t", own),
				fmt.Sprintf("-row=%d", i), "-duration="+duration.String())
			errs <- err
		}()
	}
	var failed error
	for range processes {
		failed = errors.Join(failed, <-errs)
	}
	if failed != nil {
		return failed
	}
	var waits []int64
	least := len(results[0].Waits)
	for _, result := range results {
		waits = append(waits, result.Waits...)
		least = min(least, len(result.Waits))
	}
	slices.Sort(waits)
	at := func(share float64) float64 { return float64(waits[int(share*float64(len(waits)-1))]) / 1000 }
	fmt.Printf("| %s | %s | %s | %s | %.0f ms | %.1f ms | %.2f ms | %.0f | %.0f %% |\n", name, results[0].SQLite, synchronous, busyName(own),
		at(1), at(0.999), at(0.5), float64(len(waits))/duration.Seconds(), 100*float64(least)/float64(len(waits)))
	return nil
}

func child(dir, name string, args ...string) (worker.Result, error) {
	var result worker.Result
	var stderr strings.Builder
	command := exec.Command(filepath.Join(dir, name), args...)
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return result, fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(stderr.String()))
	}
	return result, json.Unmarshal(out, &result)
}

func busyName(own bool) string {
	if own {
		return "own retry, 1 to 2 ms"
	}
	return "busy timeout"
}
