// Command servers starts the real servers that tests and benchmarks need, installing those that the machine lacks.
//
//	go run ./dev/servers -- CMD ARGS...   # run CMD while the servers run; exit with its code
//	go run ./dev/servers up               # print their environment and keep them running until interrupted
//	go run ./dev/servers install          # only install what is missing
//
// It works on Debian, as root or as a user with sudo. The servers listen on free loopback ports, keep their data in temporary
// directories, and stop when CMD ends, on SIGINT and SIGTERM, and when this program is killed.
//
// CMD sees
//
//	TENURE_TEST_POSTGRES       the URL of a PostgreSQL server for its superuser, password included
//	TENURE_TEST_PGBOUNCER      the URL of the same database by way of PgBouncer in transaction mode
//	TENURE_TEST_POSTGRES_BIN   the directory of PostgreSQL's programs, for tests that start a server of their own to crash it
//	TENURE_TEST_ETCD           the store URL of an etcd, single node, without authentication
//	TENURE_TEST_ETCD_METRICS   the URL of its metrics, which count requests
//	TENURE_TEST_KUBERNETES     the store URL of a Kubernetes API server for its administrator, with the path of a kubeconfig in it
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/gotenure/tenure/internal/servers"
)

// ownFailure is the exit code when it is not CMD that failed; env, timeout and nohup use the same.
const ownFailure = 125

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "servers:", err)
	}
	os.Exit(code)
}

func run(args []string) (int, error) {
	var command []string
	switch {
	case len(args) == 1 && (args[0] == "up" || args[0] == "install"):
	case len(args) >= 2 && args[0] == "--":
		command = args[1:]
	default:
		return ownFailure, errors.New("use: go run ./dev/servers -- CMD ARGS..., or up, or install")
	}
	if err := servers.DieWithParent(); err != nil {
		return ownFailure, err
	}
	// Once the first signal has ended ctx, the signals stay caught: stopping the servers must not be cut short.
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	if err := install(ctx); err != nil {
		return ownFailure, err
	}
	if args[0] == "install" {
		return 0, nil
	}
	env, stop, err := startAll(ctx)
	defer stop()
	if err != nil {
		return ownFailure, err
	}
	if command == nil {
		for _, e := range env {
			name, value, _ := strings.Cut(e, "=")
			fmt.Printf("export %s='%s'\n", name, value)
		}
		<-ctx.Done()
		return 0, nil
	}
	return runCommand(ctx, command, env)
}

// runCommand runs CMD to its end and returns its exit code. When ctx ends, CMD and its descendants get SIGTERM, and SIGKILL 10 s later.
func runCommand(ctx context.Context, args, env []string) (int, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error {
		servers.SignalTree(cmd.Process.Pid, syscall.SIGTERM)
		return nil
	}
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return ownFailure, errors.New("interrupted")
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode(), nil
	case err != nil:
		return ownFailure, err
	}
	return 0, nil
}
