package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gotenure/tenure/store/embedded"
)

func newServe() *cobra.Command {
	var c embedded.Config
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a store to other machines: an etcd, for those who run none",
		Long: `Serve a store: an etcd within this process, as a single node or as one of three or
more. It prints the store URL when it serves, for --store and ` + storeVariable + `, and runs
until SIGINT or SIGTERM. Any client of etcd can talk to it: etcdctl makes snapshots,
restores them, and enables authentication.

A single node:

  tenure serve --data-dir /var/lib/tenure --listen 10.0.0.1:2379 --cert s.pem --key s.key

Three nodes, each with its own name and addresses:

  tenure serve --data-dir /var/lib/tenure --listen 10.0.0.1:2379 \
    --name a --peer-listen 10.0.0.1:2380 \
    --initial-cluster a=10.0.0.1:2380,b=10.0.0.2:2380,c=10.0.0.3:2380`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runServe(cmd, c) },
	}
	f := cmd.Flags()
	f.StringVar(&c.DataDir, "data-dir", "", "`DIR` of the data (default tenure/serve in your state directory)")
	f.StringVar(&c.Listen, "listen", embedded.DefaultListen, "`IP:PORT` for clients")
	f.StringVar(&c.Advertise, "advertise", "", "`HOST:PORT` by which clients reach this server (default --listen)")
	f.StringVar(&c.Name, "name", "", "this node's `NAME`, when there are several")
	f.StringVar(&c.PeerListen, "peer-listen", "", "`IP:PORT` for the other nodes")
	f.StringVar(&c.InitialCluster, "initial-cluster", "", "all nodes: `NAME=HOST:PORT,…`, the same list for each")
	f.BoolVar(&c.Join, "join", false, "this node is new in a cluster that runs: see etcdctl member add")
	f.StringVar(&c.CertFile, "cert", "", "certificate `FILE`: speak TLS with clients")
	f.StringVar(&c.KeyFile, "key", "", "its private key `FILE`")
	f.StringVar(&c.ClientCAFile, "client-ca", "", "`FILE` of the authority whose certificates clients need")
	f.StringVar(&c.PeerCertFile, "peer-cert", "", "certificate `FILE` for the other nodes, of a server and a client")
	f.StringVar(&c.PeerKeyFile, "peer-key", "", "its private key `FILE`")
	f.StringVar(&c.PeerCAFile, "peer-ca", "", "`FILE` of the authority whose certificates the other nodes need")
	f.StringVar(&c.LogLevel, "log-level", "warn", "least `LEVEL` of etcd's log: debug, info, warn or error")
	return cmd
}

func runServe(cmd *cobra.Command, c embedded.Config) error {
	if c.DataDir == "" {
		file, err := defaultFile()
		if err != nil {
			return usage("there is no default for the data: %w: set --data-dir", err)
		}
		c.DataDir = filepath.Join(filepath.Dir(file), "serve")
	}
	ctx := cmd.Context()
	notice := time.AfterFunc(waitNotice, func() {
		if c.InitialCluster != "" {
			fmt.Fprintln(os.Stderr, "tenure: waiting for a majority of the nodes in --initial-cluster: start them, and check that they reach each other at the addresses in it")
		}
	})
	var wrong *embedded.FieldError
	server, err := embedded.Start(ctx, c)
	notice.Stop()
	switch {
	case ctx.Err() != nil:
		return nil // it was told to stop before it served
	case errors.As(err, &wrong):
		return usage("%w", byFlags(wrong))
	case err != nil:
		return &exitError{codeUnavailable, err}
	}
	defer server.Close()
	if c.CertFile == "" && !isLoopback(c.Listen) {
		fmt.Fprintln(os.Stderr, "tenure: warning: whoever reaches "+c.Listen+" can read and change everything: use --cert, --key and --client-ca, or enable authentication with etcdctl")
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), server.URL()); err != nil {
		return failed(err)
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-server.Failed():
		return fail(codeUnavailable, "serve: %w", err)
	case <-server.Done():
		return fail(codeUnavailable, "serve: the server has ended by itself: see its log above")
	}
}

// serveFlags are the flags by the fields of embedded.Config.
var serveFlags = map[string]string{
	"DataDir": "--data-dir", "Listen": "--listen", "Advertise": "--advertise", "Name": "--name", "PeerListen": "--peer-listen", "InitialCluster": "--initial-cluster",
	"CertFile": "--cert", "KeyFile": "--key", "ClientCAFile": "--client-ca", "PeerCertFile": "--peer-cert", "PeerKeyFile": "--peer-key", "PeerCAFile": "--peer-ca",
	"LogLevel": "--log-level",
}

// byFlags is an error of package embedded in the words of the command line.
func byFlags(e *embedded.FieldError) error {
	remedy, rest := "", e.Remedy
	for _, other := range e.Others {
		before, after, _ := strings.Cut(rest, other)
		remedy, rest = remedy+before+serveFlags[other], after
	}
	return fmt.Errorf("%s %q: %s", serveFlags[e.Field], e.Value, remedy+rest)
}

// waitNotice is how long a node of several starts before it is said what it waits for.
const waitNotice = 5 * time.Second

func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && net.ParseIP(host).IsLoopback()
}
