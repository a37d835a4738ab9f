// Package embedded runs an etcd server within the process, for those who have no store to run elections on: the engine is etcd's own, server/v3/embed, as a single node or as
// one of three or more. [github.com/gotenure/tenure/store/etcd] is its client; so is any other client of etcd.
//
//	server, err := embedded.Start(ctx, embedded.Config{DataDir: "/var/lib/offices"})
//	...
//	store, err := etcd.Open(ctx, server.URL())
//
// A single node is as available as its machine: while it is down nobody can become leader, and after a TTL nobody leads. Who needs more runs three nodes, and names them all in
// the store URL. Package store/memory is for elections within one process, and needs no disk.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/gotenure/tenure/driver"
)

// A Config says what to run. DataDir is all that a single node needs.
type Config struct {
	// DataDir is the directory of the data, which one server at a time uses. It is created.
	DataDir string

	// Listen is the host and port for clients. The host is an IP address. Default: 127.0.0.1:2379. Port 0 chooses one.
	Listen string

	// Advertise is the host and port by which clients on other machines reach this server. Default: Listen. It is needed when Listen is 0.0.0.0 or ::.
	Advertise string

	// Name, PeerListen and InitialCluster are for three or more nodes: this one's name; its host and port for the others; and all of them, itself included,
	// as NAME=HOST:PORT,…, the same list for each. Empty: a single node. PeerAdvertise is as InitialCluster has it.
	Name           string
	PeerListen     string
	InitialCluster string

	// Join says that the node is new in a cluster that runs, to which it was added by etcdctl member add.
	Join bool

	// Files in PEM form for clients: CertFile and KeyFile make the server speak TLS; with ClientCAFile it wants certificates of clients that this authority has issued.
	CertFile, KeyFile, ClientCAFile string

	// Likewise between the nodes, whose certificates are for servers and clients both.
	PeerCertFile, PeerKeyFile, PeerCAFile string

	// LogLevel is the least level of what etcd writes to the standard error: debug, info, warn or error. Default: warn.
	LogLevel string
}

// DefaultListen is where clients are served by default: on this machine alone, as there is no authentication before an administrator has enabled it.
const DefaultListen = "127.0.0.1:2379"

// A Server is a running server. Its methods may be called concurrently.
type Server struct {
	etcd  *embed.Etcd
	level zap.AtomicLevel
	url   string
	close sync.Once
	ended chan struct{}
}

// Start starts a server and returns when it serves: a node of several when a majority has found together. When the context ends before, what was
// started is stopped. What is wrong with the configuration is a *FieldError.
func Start(ctx context.Context, c Config) (*Server, error) {
	logger, level, err := c.logger()
	if err != nil {
		return nil, err
	}
	config, err := c.translate(logger)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return nil, invalid("DataDir", c.DataDir, cause(err))
	}
	if used, err := inUse(c.DataDir); err != nil {
		return nil, invalid("DataDir", c.DataDir, cause(err))
	} else if used {
		return nil, fmt.Errorf("embedded: start: another server uses the data in %s: stop it, or name another directory", c.DataDir)
	}
	etcd, err := embed.StartEtcd(config)
	if err != nil && c.Join {
		return nil, fmt.Errorf("embedded: start: %w: add this node with etcdctl member add first, and name all members, the new one included, with the addresses that etcdctl member list shows", err)
	}
	if err != nil {
		return nil, fmt.Errorf("embedded: start: %w", err)
	}
	s := &Server{etcd: etcd, level: level, ended: make(chan struct{})}
	if c.InitialCluster != "" && ofSingle(etcd) {
		s.abandon()
		return nil, invalid("DataDir", c.DataDir, "it has the data of a single node, which stays one: name an empty directory, or restore a snapshot into one on each node")
	}
	select {
	case <-etcd.Server.ReadyNotify():
	case <-etcd.Server.StopNotify():
		s.abandon()
		return nil, errors.New("embedded: start: the server has stopped by itself")
	case err := <-etcd.Err():
		s.abandon()
		return nil, fmt.Errorf("embedded: start: %w", err)
	case <-ctx.Done():
		s.abandon()
		return nil, fmt.Errorf("embedded: start: %w: of several nodes a majority has to be started before one serves", context.Cause(ctx))
	}
	addr := c.Advertise
	if addr == "" {
		addr = etcd.Clients[0].Addr().String()
	}
	s.url = "etcd://" + addr
	if c.CertFile != "" {
		s.url += "?tls=true"
	}
	return s, nil
}

// URL returns the store URL of this node alone. With TLS it trusts the system's authorities: others are named by the parameter cacert.
func (s *Server) URL() string { return s.url }

// Done is closed when the server has ended: because of Close, because it was removed from its cluster, or because something failed that it cannot go on
// after, such as its disk.
func (s *Server) Done() <-chan struct{} { return s.etcd.Server.StopNotify() }

// Failed receives what goes wrong while it serves, such as a listener that breaks.
func (s *Server) Failed() <-chan error { return s.etcd.Err() }

// Close stops the server, after another node was made the leader if this one is it, which takes seconds. It can be repeated.
func (s *Server) Close() {
	s.close.Do(func() {
		s.level.SetLevel(zap.DPanicLevel) // etcd calls it errors that listeners end which it closes itself
		s.etcd.Close()
		close(s.ended)
	})
	<-s.ended
}

// ofSingle reports whether the data are those of a node that was begun without InitialCluster. etcd goes on with them, whatever the configuration says.
func ofSingle(etcd *embed.Etcd) bool {
	for _, member := range etcd.Server.Cluster().Members() {
		if slices.Contains(member.PeerURLs, singlePeer.String()) {
			return true
		}
	}
	return false
}

// singlePeer is the address of a node that has no others.
var singlePeer = url.URL{Scheme: "http", Host: "127.0.0.1:0"}

// abandon closes a server that does not serve yet: etcd's own Close would wait until it does.
func (s *Server) abandon() {
	s.etcd.Server.HardStop()
	s.Close()
}

// A FieldError says what is wrong with a field of a Config. It matches driver.ErrInvalid.
type FieldError struct {
	Field, Value string
	Remedy       string
	Others       []string // the fields that Remedy names, in its order
}

func invalid(field, value, remedy string, others ...string) error {
	return &FieldError{field, value, remedy, others}
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("embedded: %v: Config.%s %q: %s", driver.ErrInvalid, e.Field, e.Value, e.Remedy)
}

// Unwrap returns driver.ErrInvalid.
func (e *FieldError) Unwrap() error { return driver.ErrInvalid }

// logger returns one that writes to the standard error, and its level.
func (c Config) logger() (*zap.Logger, zap.AtomicLevel, error) {
	if c.LogLevel == "" {
		c.LogLevel = "warn"
	}
	level, err := zap.ParseAtomicLevel(c.LogLevel)
	if err != nil {
		return nil, level, invalid("LogLevel", c.LogLevel, "want debug, info, warn or error")
	}
	config := zap.NewProductionConfig()
	config.Level, config.DisableStacktrace, config.OutputPaths = level, true, []string{"stderr"}
	config.EncoderConfig.TimeKey, config.EncoderConfig.EncodeTime = "time", zapcore.ISO8601TimeEncoder
	logger, err := config.Build()
	return logger, level, err
}

// translate checks the configuration and makes etcd's of it.
func (c Config) translate(logger *zap.Logger) (*embed.Config, error) {
	if c.DataDir == "" {
		return nil, invalid("DataDir", "", "name a directory")
	}
	if c.Listen == "" {
		c.Listen = DefaultListen
	}
	e := embed.NewConfig()
	e.Dir, e.ZapLoggerBuilder = c.DataDir, embed.NewZapLoggerBuilder(logger)
	e.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration // 0, its default here, reports every request
	// What was overwritten or deleted is of no use to elections.
	e.AutoCompactionMode, e.AutoCompactionRetention = "periodic", "1h"
	if c.Join {
		e.ClusterState = embed.ClusterStateFlagExisting
	}
	for _, pair := range []struct{ first, a, second, b string }{
		{"CertFile", c.CertFile, "KeyFile", c.KeyFile}, {"PeerCertFile", c.PeerCertFile, "PeerKeyFile", c.PeerKeyFile},
		{"Name", c.Name, "InitialCluster", c.InitialCluster}, {"PeerListen", c.PeerListen, "InitialCluster", c.InitialCluster},
	} {
		if (pair.a == "") != (pair.b == "") {
			return nil, invalid(pair.first, pair.a, "it belongs to "+pair.second+": give both, or neither", pair.second)
		}
	}
	if c.ClientCAFile != "" && c.CertFile == "" {
		return nil, invalid("ClientCAFile", c.ClientCAFile, "give CertFile and KeyFile too", "CertFile", "KeyFile")
	}
	if c.PeerCAFile != "" && c.PeerCertFile == "" {
		return nil, invalid("PeerCAFile", c.PeerCAFile, "give PeerCertFile and PeerKeyFile too", "PeerCertFile", "PeerKeyFile")
	}
	if err := c.checkFiles(); err != nil {
		return nil, err
	}
	// etcd's gateway for JSON is a client of its own server, with the server's certificate, which clients need not accept from it: it would try for ever.
	e.EnableGRPCGateway = c.ClientCAFile == ""
	e.ClientTLSInfo = transport.TLSInfo{CertFile: c.CertFile, KeyFile: c.KeyFile, TrustedCAFile: c.ClientCAFile, ClientCertAuth: c.ClientCAFile != ""}
	e.PeerTLSInfo = transport.TLSInfo{CertFile: c.PeerCertFile, KeyFile: c.PeerKeyFile, TrustedCAFile: c.PeerCAFile, ClientCertAuth: c.PeerCAFile != ""}
	clients, err := listenURL("Listen", c.Listen, c.CertFile != "")
	if err != nil {
		return nil, err
	}
	e.ListenClientUrls, e.AdvertiseClientUrls = []url.URL{clients}, []url.URL{clients}
	if c.Advertise != "" {
		if _, _, err := net.SplitHostPort(c.Advertise); err != nil {
			return nil, invalid("Advertise", c.Advertise, "want HOST:PORT")
		}
		e.AdvertiseClientUrls = []url.URL{{Scheme: clients.Scheme, Host: c.Advertise}}
	} else if ip := net.ParseIP(clients.Hostname()); ip.IsUnspecified() {
		return nil, invalid("Advertise", "", "name the host and port by which clients reach this server, as Listen is "+c.Listen, "Listen")
	}
	return e, c.peers(e)
}

// peers fills in what nodes know of each other.
func (c Config) peers(e *embed.Config) error {
	if c.InitialCluster == "" {
		e.Name, e.ListenPeerUrls, e.AdvertisePeerUrls = "single", []url.URL{singlePeer}, []url.URL{singlePeer}
		e.InitialCluster = e.Name + "=" + singlePeer.String()
		return nil
	}
	listen, err := listenURL("PeerListen", c.PeerListen, c.PeerCertFile != "")
	if err != nil {
		return err
	}
	e.Name, e.ListenPeerUrls = c.Name, []url.URL{listen}
	var all []string
	for _, node := range strings.Split(c.InitialCluster, ",") {
		name, addr, ok := strings.Cut(node, "=")
		if _, _, err := net.SplitHostPort(addr); !ok || name == "" || err != nil {
			return invalid("InitialCluster", c.InitialCluster, "want NAME=HOST:PORT,NAME=HOST:PORT,…")
		}
		peer := url.URL{Scheme: listen.Scheme, Host: addr}
		if name == c.Name {
			e.AdvertisePeerUrls = []url.URL{peer}
		}
		all = append(all, name+"="+peer.String())
	}
	if len(all)%2 == 0 && !c.Join {
		return invalid("InitialCluster", c.InitialCluster, fmt.Sprintf("%d nodes bear no more failures than %d: name one more, or one less", len(all), len(all)-1))
	}
	if !strings.Contains(","+c.InitialCluster, ","+c.Name+"=") {
		return invalid("InitialCluster", c.InitialCluster, fmt.Sprintf("add this node, %s", c.Name))
	}
	e.InitialCluster = strings.Join(all, ",")
	return nil
}

func listenURL(field, addr string, secure bool) (url.URL, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil || net.ParseIP(host) == nil {
		return url.URL{}, invalid(field, addr, "want IP:PORT, for example 127.0.0.1:2379")
	}
	u := url.URL{Scheme: "http", Host: addr}
	if secure {
		u.Scheme = "https"
	}
	return u, nil
}
