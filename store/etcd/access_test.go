package etcd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/etcd"
)

// guarded starts a server with authentication, whose tokens expire after a second without use. User team may use keys below team/ alone.
func guarded(t *testing.T) (server *testserver.Etcd, root *clientv3.Client) {
	t.Helper()
	server = testserver.StartEtcd(t, "--auth-token-ttl=1")
	c := connect(t, server.URL())
	ctx := deadline(t)
	must(c.UserAdd(ctx, "root", "toor"))(t)
	must(c.UserGrantRole(ctx, "root", "root"))(t)
	must(c.UserAdd(ctx, "team", "s3cret:/@"))(t)
	must(c.RoleAdd(ctx, "team"))(t)
	must(c.RoleGrantPermission(ctx, "team", "team/", clientv3.GetPrefixRangeEnd("team/"), clientv3.PermissionType(clientv3.PermReadWrite)))(t)
	must(c.UserGrantRole(ctx, "team", "team"))(t)
	must(c.AuthEnable(ctx))(t)
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Addr()}, Username: "root", Password: "toor"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return server, root
}

func teamURL(server *testserver.Etcd, password string) string {
	return "etcd://team:" + url.QueryEscape(password) + "@" + server.Addr() + "?prefix=team/"
}

// What a server refuses is an error that says what to do, and does not show the password.
func TestRefusals(t *testing.T) {
	t.Parallel()
	server, _ := guarded(t)
	for _, c := range []struct{ url, want string }{
		{server.URL() + "?prefix=team/", "give a user and a password"},
		{teamURL(server, "wr0ng"), "check user and password"},
		{strings.Replace(teamURL(server, "s3cret:/@"), "team/", "others/", 1), "grant the user's role readwrite"},
	} {
		s, err := etcd.Open(deadline(t), c.url)
		if err == nil {
			_ = s.Close()
		}
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "wr0ng") {
			t.Errorf("%s: %v; want ErrInvalid that says %q and no password", c.url, err, c.want)
		}
	}
	open := testserver.StartEtcd(t, "--heartbeat-interval=500", "--election-timeout=5000")
	n, err := openStore(t, open.URL()).Open(deadline(t), "n", 3*time.Second)
	if err == nil {
		_ = n.Close(deadline(t))
	}
	if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "3s") || !strings.Contains(err.Error(), "8s") {
		t.Errorf("a TTL below the server's least: %v; want ErrInvalid with both", err)
	}
	if _, err := openStore(t, open.URL()).Open(deadline(t), "n", 10500*time.Millisecond); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "11s") {
		t.Errorf("a TTL of 10.5 s: %v; want ErrInvalid that names the next", err)
	}
	if _, err := openSession(t, openStore(t, open.URL()), "n", 10*time.Second).Acquire(deadline(t), driver.Bid{Election: "_tenure/x"}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("an election among the package's own keys: %v; want ErrInvalid", err)
	}
}

// Tokens of authentication expire while one waits, and the password is changed.
func TestCredentialsWhileWaiting(t *testing.T) {
	t.Parallel()
	server, root := guarded(t)
	holder, waiter := openSession(t, openStore(t, teamURL(server, "s3cret:/@")), "holder", time.Minute), openSession(t, openStore(t, teamURL(server, "s3cret:/@")), "waiter", time.Minute)
	held := acquire(t, holder, "e")
	queue(t, waiter, "e")
	won := campaign(t, waiter, "e")
	time.Sleep(3 * time.Second) // the tokens have to expire
	renewed(t, holder)
	renewed(t, waiter)
	if err := holder.Release(deadline(t), "e", held.Token); err != nil {
		t.Fatal(err)
	}
	o := <-won
	if o.err != nil || o.record.Token <= held.Token {
		t.Fatalf("after the tokens had expired: %+v", o)
	}

	won = campaign(t, holder, "e")
	must(root.UserChangePassword(deadline(t), "team", "rotated"))(t)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := waiter.Release(ctx, "e", o.record.Token); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("Release after the password was changed: %v; want an error without it", err)
	}
	must(root.UserChangePassword(deadline(t), "team", "s3cret:/@"))(t)
	releases(t, waiter, "e", o.record.Token)
	if o := <-won; o.err != nil {
		t.Errorf("after the password was changed back: %+v", o)
	}
}

// A user who may use no more than the store's prefix can do all that there is.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	server, root := guarded(t)
	s := openStore(t, teamURL(server, "s3cret:/@"))
	n, other := openSession(t, s, "n", time.Minute), openSession(t, s, "other", time.Minute)
	held := acquire(t, n, "e")
	queue(t, other, "e")
	if err := s.Ask(deadline(t), "e", held.Token); err != nil {
		t.Error(err)
	}
	if grant := renewed(t, n); grant.Asked["e"] != held.Token {
		t.Errorf("Asked is %v", grant.Asked)
	}
	for r, err := range s.List(deadline(t), "") {
		if err != nil || r.Leader != "n" {
			t.Errorf("List yields %+v, %v", r, err)
		}
	}
	must(root.Delete(deadline(t), "team/e/"+n.ID()))(t)
	if grant := renewed(t, n); grant.Holds == nil {
		t.Error("the deletion was not told")
	}
	if err := n.Close(deadline(t)); err != nil {
		t.Error(err)
	}
	acquire(t, other, "e")
}

// A pair is a certificate with its key, in files.
type pair struct {
	cert, key string
	parsed    *x509.Certificate
	private   *ecdsa.PrivateKey
}

// issue makes a certificate, signed by ca, or by itself when that is nil.
func issue(t *testing.T, dir, name string, ca *pair) *pair {
	t.Helper()
	private := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: ca == nil, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := template, private
	if ca != nil {
		parent, signer = ca.parsed, ca.private
	}
	der := must(x509.CreateCertificate(rand.Reader, template, parent, &private.PublicKey, signer))(t)
	key := must(x509.MarshalECPrivateKey(private))(t)
	p := &pair{cert: filepath.Join(dir, name+".pem"), key: filepath.Join(dir, name+".key"), parsed: must(x509.ParseCertificate(der))(t), private: private}
	for file, block := range map[string]*pem.Block{p.cert: {Type: "CERTIFICATE", Bytes: der}, p.key: {Type: "EC PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := issue(t, dir, "ca", nil)
	server, client, stranger := issue(t, dir, "server", ca), issue(t, dir, "client", ca), issue(t, dir, "stranger", nil)
	e := testserver.StartEtcd(t, "--cert-file="+server.cert, "--key-file="+server.key, "--trusted-ca-file="+ca.cert, "--client-cert-auth")
	good := e.URL() + "?cacert=" + ca.cert + "&cert=" + client.cert + "&key=" + client.key
	n := openSession(t, openStore(t, good), "n", time.Minute)
	acquire(t, n, "e")
	for bad, want := range map[string]string{
		e.URL():                        "wants TLS",
		e.URL() + "?cacert=" + ca.cert: "certificate",
		e.URL() + "?cacert=" + ca.cert + "&cert=" + stranger.cert + "&key=" + stranger.key: "certificate",
		e.URL() + "?tls=true": "unknown authority",
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		s, err := etcd.Open(ctx, bad)
		cancel()
		if err == nil {
			t.Errorf("%s: it connects", bad)
			_ = s.Close()
			continue
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want an error that says %q", bad, err, want)
		}
	}
}

func TestURLs(t *testing.T) {
	for _, c := range []struct{ url, want string }{
		{"http://h", "want etcd://"},
		{"etcd://", "want HOST or HOST:PORT"},
		{"etcd://h:0", `host "h:0"`},
		{"etcd://h:2379,", `host ""`},
		{"etcd://h:port", `host "h:port"`},
		{"etcd://h/path", "parameter prefix"},
		{"etcd://user@h", "user or password is missing"},
		{"etcd://user:s3cret%zz@h", "percent-encode"},
		{"etcd://user:s3cret/x@h", "percent-encode"},
		{"etcd://user:s3cret?x@h", "parameter"},
		{"etcd://h?frobnicate=1", `unknown parameter "frobnicate"`},
		{"etcd://h?prefix=a&prefix=b", "given 2 times"},
		{"etcd://h?tls=maybe", "true or false"},
		{"etcd://h?cert=a", "cert and key"},
		{"etcd://h?cacert=/missing", "cacert"},
		{"etcd://h?tls=false&cacert=x", "leave one out"},
	} {
		s, err := etcd.Open(deadline(t), c.url)
		if err == nil {
			_ = s.Close()
		}
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v; want ErrInvalid that says %q", c.url, err, c.want)
		}
	}
}
