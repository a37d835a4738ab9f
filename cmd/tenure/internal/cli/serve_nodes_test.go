//go:build unix

package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// authority makes ca.pem in the directory, and NAME.pem with NAME.key for each name: certificates of that authority, for the loopback address.
func authority(t *testing.T, dir string, names ...string) {
	t.Helper()
	var parent *x509.Certificate
	var signer *ecdsa.PrivateKey
	for i, name := range append([]string{"ca"}, names...) {
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: i == 0, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		}
		switch name { // no more than each needs
		case "server":
			template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		case "client":
			template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		}
		if parent == nil {
			parent, signer = template, private
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &private.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		key, err := x509.MarshalECPrivateKey(private)
		if err != nil {
			t.Fatal(err)
		}
		for suffix, block := range map[string]*pem.Block{".pem": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "EC PRIVATE KEY", Bytes: key}} {
			if err := os.WriteFile(filepath.Join(dir, name+suffix), pem.EncodeToMemory(block), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// freeAddrs returns loopback addresses that were free a moment ago.
func freeAddrs(t *testing.T, n int) []string {
	t.Helper()
	var addrs []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

// serves waits until the server has printed its URL, and returns it.
func (r *run) serves() string {
	r.t.Helper()
	var url string
	r.eventually(r.id+" serves", func() bool {
		select {
		case <-r.ended:
			r.t.Fatalf("%s has ended: %s", r.id, r.log())
		default:
		}
		out, _ := os.ReadFile(filepath.Join(r.dir, r.id+".stdout"))
		line, _, whole := strings.Cut(string(out), "\n")
		url = line
		return whole
	})
	return url
}

// ends waits until the process has ended, and checks with what exit code and text.
func (r *run) ends(code int, text string) {
	r.t.Helper()
	if got := r.code(); got != code || !strings.Contains(r.log(), text) {
		r.t.Errorf("%s: exit code %d, want %d, and %q in %q", r.id, got, code, text, r.log())
	}
}

// A server with TLS is reached by who knows its authority.
func TestServeTLS(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a refused client to give up: run it without -short")
	}
	t.Parallel()
	s := &site{t: t, dir: t.TempDir(), name: "job"}
	authority(t, s.dir, "server")
	serve := []string{"serve", "--data-dir", "data", "--listen", "127.0.0.1:0", "--cert", "server.pem", "--key", "server.key"}
	server := s.tenure("server", serve...)
	url := server.serves()
	plain, isTLS := strings.CutSuffix(url, "?tls=true")
	if !isTLS {
		t.Fatalf("it serves %s; want tls=true", url)
	}
	s.store = plain
	without := s.tenure("without", "status")
	s.store = url
	unknown := s.tenure("unknown", "status")
	s.store = plain + "?cacert=" + filepath.Join(s.dir, "ca.pem")
	s.tenure("run", "run", s.name, "--", "echo", "hello").ends(0, "")
	s.tenure("again", serve...).ends(codeUnavailable, "another server uses the data in data")
	without.ends(codeUnavailable, "the server wants TLS: name its authorities with cacert=FILE")
	unknown.ends(codeUnavailable, "certificate signed by unknown authority: check cacert")
	server.signal(syscall.SIGTERM)
	server.ends(0, "")

	several := []string{"--name", "a", "--peer-listen", "127.0.0.1:0", "--initial-cluster", "a=127.0.0.1:1,b=127.0.0.1:2,c=127.0.0.1:3"}
	s.tenure("several", append(serve, several...)...).ends(codeUsage, `--data-dir "data": it has the data of a single node`)
	serve[2] = "other"
	lone := s.tenure("lone", append(serve, several...)...)
	s.eventually("it says what it waits for", func() bool {
		return strings.Contains(lone.log(), "waiting for a majority of the nodes in --initial-cluster")
	})
	lone.signal(syscall.SIGTERM)
	lone.ends(0, "")
}

// Three nodes with TLS among them and for clients: each is killed and started again, the leading one of etcd at some time among them, and the election goes on.
func TestServeThreeNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute: run it without -short")
	}
	t.Parallel()
	s := &site{t: t, dir: t.TempDir(), name: "job"}
	authority(t, s.dir, "server", "client", "peer")
	addrs := freeAddrs(t, 6)
	clients, peers := addrs[:3], addrs[3:]
	names := []string{"a", "b", "c"}
	start := func(i int) *run {
		return s.tenure("node-"+names[i], "serve", "--data-dir", "data-"+names[i], "--listen", clients[i], "--name", names[i], "--peer-listen", peers[i],
			"--initial-cluster", fmt.Sprintf("a=%s,b=%s,c=%s", peers[0], peers[1], peers[2]),
			"--cert", "server.pem", "--key", "server.key", "--client-ca", "ca.pem", "--peer-cert", "peer.pem", "--peer-key", "peer.key", "--peer-ca", "ca.pem")
	}
	nodes := []*run{start(0), start(1), start(2)}
	for i, node := range nodes {
		if got, want := node.serves(), "etcd://"+clients[i]+"?tls=true"; got != want {
			t.Fatalf("%s prints %q, want %q", node.id, got, want)
		}
	}
	file := func(name string) string { return filepath.Join(s.dir, name) }
	trusted := "etcd://" + strings.Join(clients, ",") + "?cacert=" + file("ca.pem")
	s.store = trusted
	stranger := s.tenure("stranger", "status")
	s.store = trusted + "&cert=" + file("client.pem") + "&key=" + file("client.key")
	for _, id := range []string{"x", "y", "z"} {
		s.run(id, "--ttl", "4s")
	}
	s.started(1)
	stranger.ends(codeUnavailable, "certificate required: check cert and key")
	for i, node := range nodes {
		node.signal(syscall.SIGKILL)
		node.code()
		members, _ := s.starts()
		s.eventually("the leader is asked to hand over", func() bool {
			now, _ := s.starts()
			return len(now) > len(members) || s.tenure("resign", "resign", s.name).code() == 0
		})
		s.started(len(members) + 1)
		nodes[i] = start(i)
		nodes[i].serves()
	}
	members, _ := s.starts()
	s.started(len(members)).signal(syscall.SIGKILL)
	s.started(len(members) + 1)
	for _, node := range nodes {
		if strings.Contains(node.log(), "incompatible key usage") {
			t.Errorf("%s speaks to itself as a client: %s", node.id, node.log())
		}
		node.signal(syscall.SIGTERM)
		node.ends(0, "")
	}
}
