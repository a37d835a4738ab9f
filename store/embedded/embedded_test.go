package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/driver/drivertest"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/embedded"
	"github.com/gotenure/tenure/store/etcd"
)

// patience bounds every wait for something that must happen.
const patience = testserver.Patience

var deadline = testserver.Deadline

func start(t testing.TB, c embedded.Config) *embedded.Server {
	t.Helper()
	c.LogLevel = "fatal" // etcd calls it an error that a server which is closed does not serve
	s, err := embedded.Start(deadline(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func open(t testing.TB, url string) *etcd.Store {
	t.Helper()
	s, err := etcd.Open(deadline(t), url)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The suite of stores, against this server, whose etcd is of another version than that of store/etcd's own tests.
func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute: run it without -short")
	}
	server := start(t, embedded.Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0"})
	operator, err := clientv3.New(clientv3.Config{Endpoints: []string{strings.TrimPrefix(server.URL(), "etcd://")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = operator.Close() })
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		return drivertest.Harness{
			Open: func(t testing.TB) driver.Store { return open(t, server.URL()) },
			DeleteRecord: func(t testing.TB, election string) {
				if _, err := operator.Delete(deadline(t), election+"/", clientv3.WithPrefix()); err != nil {
					t.Fatal(err)
				}
			},
			Cycles: 200, // store/etcd has the thousand
		}
	})
}

// What a server knows outlives it: tokens go on from where they were.
func TestRestart(t *testing.T) {
	t.Parallel()
	c := embedded.Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0"}
	var last driver.Record
	for range 3 {
		server := start(t, c)
		store := open(t, server.URL())
		n, err := store.Open(deadline(t), "n", 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		r, err := n.Acquire(deadline(t), driver.Bid{Election: "e", Queue: true})
		if err != nil || r.Token <= last.Token {
			t.Fatalf("acquired %+v after token %d: %v", r, last.Token, err)
		}
		last = r
		if err := n.Close(deadline(t)); err != nil {
			t.Fatal(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
		server.Close()
		server.Close()
		<-server.Done()
	}
}

// freeAddr returns a loopback address that was free a moment ago.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // another may take it: then the test fails, and is repeated
	return l.Addr().String()
}

// Three nodes bear the loss of one.
func TestThreeNodes(t *testing.T) {
	t.Parallel()
	var peers, names []string
	for i := range 3 {
		names = append(names, fmt.Sprint("n", i))
		peers = append(peers, freeAddr(t))
	}
	var all []string
	for i, name := range names {
		all = append(all, name+"="+peers[i])
	}
	type started struct {
		s   *embedded.Server
		err error
	}
	nodes := make(chan started, 3)
	for i, name := range names {
		c := embedded.Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0", Name: name, PeerListen: peers[i], InitialCluster: strings.Join(all, ","), LogLevel: "fatal"}
		go func() {
			s, err := embedded.Start(deadline(t), c)
			nodes <- started{s, err}
		}()
	}
	var servers []*embedded.Server
	var hosts []string
	for range 3 {
		n := <-nodes
		if n.err != nil {
			t.Fatal(n.err)
		}
		t.Cleanup(n.s.Close)
		servers = append(servers, n.s)
		hosts = append(hosts, strings.TrimPrefix(n.s.URL(), "etcd://"))
	}
	store := open(t, "etcd://"+strings.Join(hosts, ","))
	defer func() { _ = store.Close() }()
	n, err := store.Open(deadline(t), "n", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	servers[0].Close()
	for end := time.Now().Add(patience); ; {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		_, err := n.Acquire(ctx, driver.Bid{Election: "e", Queue: true})
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after the loss of a node: %v", err)
		}
		time.Sleep(50 * time.Millisecond) // as package tenure backs off
	}
}

// The data are one server's at a time, and a single node's stay one's.
func TestDataOfAnother(t *testing.T) {
	t.Parallel()
	c := embedded.Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0"}
	server := start(t, c)
	if s, err := embedded.Start(deadline(t), c); err == nil || !strings.Contains(err.Error(), "another server uses the data in "+c.DataDir) {
		t.Errorf("a second server with the data: %v, %v", s, err)
	}
	server.Close()
	c.Name, c.PeerListen, c.InitialCluster = "a", "127.0.0.1:0", "a=127.0.0.1:2380,b=127.0.0.1:2381,c=127.0.0.1:2382"
	c.LogLevel = "fatal"
	if s, err := embedded.Start(deadline(t), c); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "single node") {
		t.Errorf("one of three with the data of a single node: %v, %v", s, err)
	}
	c.Name, c.PeerListen, c.InitialCluster = "", "", ""
	start(t, c) // it has them as before
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text.pem")
	if err := os.WriteFile(text, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]embedded.Config{
		"Config.DataDir":        {},
		"Config.Listen":         {DataDir: dir, Listen: "localhost:2379"},
		"Config.Advertise":      {DataDir: dir, Listen: "0.0.0.0:2379"},
		"Config.CertFile":       {DataDir: dir, KeyFile: "key.pem"},
		"Config.ClientCAFile":   {DataDir: dir, ClientCAFile: "ca.pem"},
		"cannot read none.pem":  {DataDir: dir, CertFile: "none.pem", KeyFile: "key.pem"},
		"Config.PeerCertFile":   {DataDir: dir, PeerCertFile: text, PeerKeyFile: text},
		"Config.Name":           {DataDir: dir, Name: "a"},
		"Config.InitialCluster": {DataDir: dir, Name: "a", PeerListen: "127.0.0.1:2380", InitialCluster: "a=127.0.0.1:2380,b=127.0.0.1:2381"},
		"add this node":         {DataDir: dir, Name: "d", PeerListen: "127.0.0.1:2380", InitialCluster: "a=127.0.0.1:2380,b=127.0.0.1:2381,c=127.0.0.1:2382"},
	} {
		s, err := embedded.Start(deadline(t), c)
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; want ErrInvalid that names %s", c, err, want)
		}
	}
	// A lone node of three waits for the others as long as it may, and then leaves nothing behind.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err := embedded.Start(ctx, embedded.Config{DataDir: dir, Listen: "127.0.0.1:0", Name: "a", PeerListen: "127.0.0.1:0",
		InitialCluster: "a=127.0.0.1:2380,b=127.0.0.1:2381,c=127.0.0.1:2382", LogLevel: "fatal"})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "majority") {
		t.Errorf("a lone node: %v; want the context's error and a word on the majority", err)
	}
}
