package consul_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/consul"
)

// A guarded is a server with access control.
type guarded struct {
	*testserver.Consul
	admin *api.Client
}

func startGuarded(t testing.TB) guarded {
	t.Helper()
	token := uuid(t)
	server := testserver.StartConsul(t, `acl { enabled = true, default_policy = "deny", enable_token_persistence = true, tokens { initial_management = "`+token+`", agent = "`+token+`" } }`)
	admin, err := api.NewClient(&api.Config{Address: server.Addr(), Token: token})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		if nodes, _, err := admin.Catalog().Nodes(nil); err != nil || len(nodes) == 0 {
			return fmt.Sprintf("nodes: %v, %v", nodes, err)
		}
		return ""
	})
	return guarded{server, admin}
}

func uuid(t testing.TB) string {
	t.Helper()
	b := make([]byte, 16)
	_, _ = rand.Read(b) // it never fails
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// grant returns a new token with a policy of these rules.
func (g guarded) grant(t testing.TB, rules string) *api.ACLToken {
	t.Helper()
	policy, _, err := g.admin.ACL().PolicyCreate(&api.ACLPolicy{Name: "p" + uuid(t), Rules: rules}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, _, err := g.admin.ACL().TokenCreate(&api.ACLToken{Policies: []*api.ACLTokenPolicyLink{{ID: policy.ID}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func (g guarded) url(token string) string {
	return "consul://:" + token + "@" + g.Addr() + "?min-ttl=1s&prefix=app/"
}

const (
	sessionRule = `session_prefix "" { policy = "write" } `
	keyRule     = `key_prefix "app/" { policy = "write" } `
)

// The rules that the documentation asks for are enough, and the error that comes without each names it.
func TestPermissions(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	store := open(t, g.url(g.grant(t, sessionRule+keyRule).SecretID))
	s := session(t, store, "m", time.Minute)
	held := acquire(t, s, "orders", "v")
	if grant, err := s.KeepAlive(t.Context()); err != nil || grant.Holds != nil {
		t.Errorf("KeepAlive: %+v, %v", grant, err)
	}
	if r, err := store.Get(t.Context(), "orders"); err != nil || r.Leader != "m" {
		t.Errorf("Get: %+v, %v", r, err)
	}
	if err := store.Ask(t.Context(), "orders", held.Token); err != nil {
		t.Errorf("Ask: %v", err)
	}
	found := 0
	for _, err := range store.List(t.Context(), "") {
		if err != nil {
			t.Errorf("List: %v", err)
		}
		found++
	}
	if found != 1 {
		t.Errorf("List yields %d records; want 1", found)
	}
	for _, c := range []struct{ rules, missing string }{
		{keyRule, `session_prefix "" { policy = "write" }`},
		{sessionRule, `key_prefix "app/" { policy = "write" }`},
		{sessionRule + `key_prefix "app/" { policy = "read" }`, `key_prefix "app/" { policy = "write" }`},
	} {
		token := g.grant(t, c.rules).SecretID
		_, err := open(t, g.url(token)).Open(t.Context(), "m", time.Minute)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), c.missing) || strings.Contains(err.Error(), token) {
			t.Errorf("with %s: %v; want ErrInvalid, the missing rule %s, and no token", c.rules, err, c.missing)
		}
	}
	for _, token := range []string{"wrong", ""} {
		if _, err := open(t, g.url(token)).Open(t.Context(), "m", time.Minute); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "token") {
			t.Errorf("with token %q: %v; want ErrInvalid and what to do", token, err)
		}
	}
	// Who may only read sees the record.
	reader := open(t, g.url(g.grant(t, `key_prefix "app/" { policy = "read" }`).SecretID))
	if r, err := reader.Get(t.Context(), "orders"); err == nil && (r.Session != s.ID() || r.Token != held.Token) {
		t.Errorf("Get by a reader: %+v", r)
	}
}

// The token of a leader and of a member that waits is revoked, and replaced in its file within the lease. Nothing is lost, and the one that waits takes over in the end.
func TestTokenIsReplaced(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	file := filepath.Join(t.TempDir(), "token")
	replace := func() *api.ACLToken {
		token := g.grant(t, sessionRule+keyRule)
		// In one step, as a deployment does.
		if err := os.WriteFile(file+".new", []byte(token.SecretID+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
		return token
	}
	old := replace()
	url := "consul://" + g.Addr() + "?min-ttl=1s&prefix=app/&token-file=" + file
	o := newOffice(t)
	const ttl = 9 * time.Second
	a := startMember(t, url, o, "orders", "a", ttl)
	o.AwaitLeader("a")
	startMember(t, url, o, "orders", "b", ttl)
	if _, err := g.admin.ACL().TokenDelete(old.AccessorID, nil); err != nil {
		t.Fatal(err)
	}
	time.Sleep(ttl / 2) // renewals meet the old token
	replace()
	time.Sleep(ttl) // a lease has to pass
	if got := o.All(); len(got) != 1 || o.Leader() != "a" {
		t.Errorf("the terms are %v and the leader is %q; want one term that goes on", got, o.Leader())
	}
	a.stop()
	o.AwaitLeader("b")
}

// The token is revoked and stays so for longer than the lease: the leader stops in time. With another one it leads again by itself.
func TestTokenIsRevoked(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	file := filepath.Join(t.TempDir(), "token")
	put := func(token *api.ACLToken) {
		if err := os.WriteFile(file, []byte(token.SecretID), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := g.grant(t, sessionRule+keyRule)
	put(old)
	o := newOffice(t)
	o.Revoked = true
	url := "consul://" + g.Addr() + "?min-ttl=1s&prefix=app/&token-file=" + file
	startMember(t, url, o, "orders", "a", 3*time.Second)
	o.AwaitLeader("a")
	startMember(t, url, o, "orders", "b", 3*time.Second)
	// Both are to have been allowed everything once: then a refusal may pass. So b leads too.
	pair, _, err := g.admin.KV().Get("app/orders", nil)
	if err != nil || pair == nil {
		t.Fatal(pair, err)
	}
	if _, err := g.admin.Session().Destroy(pair.Session, nil); err != nil {
		t.Fatal(err)
	}
	o.AwaitLeader("b")
	if _, err := g.admin.ACL().TokenDelete(old.AccessorID, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		if who := o.Leader(); who != "" {
			return who + " leads on with a token that was revoked"
		}
		return ""
	})
	put(g.grant(t, sessionRule+keyRule))
	o.AwaitLeader("")
}

// certificates makes an authority and a certificate for the loopback address that serves both ends.
func certificates(t testing.TB) (ca, cert, key string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	make := func(serial int64, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: fmt.Sprint("test ", serial)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"server.dc1.consul"}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IsCA: parent == nil, BasicConstraintsValid: true,
		}
		if parent == nil {
			parent, signer = c, own
		}
		der, err := x509.CreateCertificate(rand.Reader, c, parent, &own.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		if c, err = x509.ParseCertificate(der); err != nil {
			t.Fatal(err)
		}
		return c, own
	}
	authority, signer := make(1, nil, nil)
	leaf, own := make(2, authority, signer)
	der, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	return write("ca.pem", "CERTIFICATE", authority.Raw), write("cert.pem", "CERTIFICATE", leaf.Raw), write("key.pem", "PRIVATE KEY", der)
}

// HTTPS with client certificates.
func TestTLS(t *testing.T) {
	t.Parallel()
	ca, cert, key := certificates(t)
	server := testserver.StartConsul(t, fmt.Sprintf(`tls { https { ca_file = %q, cert_file = %q, key_file = %q, verify_incoming = true } }`, ca, cert, key))
	base := "consul://" + server.HTTPSAddr() + "?min-ttl=1s"
	full := base + "&cacert=" + ca + "&cert=" + cert + "&key=" + key
	acquire(t, session(t, open(t, full), "m", time.Minute), "orders", "v")
	acquire(t, session(t, open(t, full+"&servername=server.dc1.consul&tls=true"), "m", time.Minute), "invoices", "v")
	for name, url := range map[string]string{
		"no authority":          base + "&tls=true",
		"no client certificate": base + "&cacert=" + ca,
		"no TLS":                base,
		"another name":          full + "&servername=elsewhere.example",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if _, err := open(t, url).Open(ctx, "m", time.Minute); err == nil {
			t.Errorf("%s: opened", name)
		}
		cancel()
	}
}

// What cannot be right is refused with an error that says what to do, and shows no token.
func TestRefusals(t *testing.T) {
	file := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]string{
		"redis://h":                            "consul://",
		"consul://h:99999":                     "HOST:PORT",
		"consul://:8500":                       "HOST:PORT",
		"consul://hunter2@h":                   "colon before the token",
		"consul://:hunter2@h/app":              "prefix",
		"consul://:hunter2@h?prefx=a":          "known are",
		"consul://:hunter2@h?prefix=a&prefix=": "once",
		"consul://:hun%ter2@h":                 "percent-encode",
		"consul://:hunter2@h?%zz":              "percent-encode",
		"consul://:hunter2@h?prefix=/a":        "slash at the front",
		"consul://:hunter2@h?prefix=a/../b/":   "segment",
		"consul://:hunter2@h?lock-delay=2m":    "1m0s",
		"consul://:hunter2@h?lock-delay=x":     "15s",
		"consul://:hunter2@h?lock-delay=-1s":   "0s",
		"consul://:hunter2@h?min-ttl=0.1ms":    "session_ttl_min",
		"consul://:hunter2@h?tls=maybe":        "true or false",
		"consul://:hunter2@h?tls=false&cert=c": "leave one out",
		"consul://:hunter2@h?cert=c":           "belong together",
		"consul://h?cacert=" + file:            "PEM",
		"consul://h?cacert=/nowhere":           "no such file",
		"consul://h?token-file=" + file:        "exactly one line",
		"consul://:hunter2@h?token-file=f":     "leave one out",
	} {
		_, err := consul.Open(url)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v; want ErrInvalid with %q and without the token", url, err, want)
		}
	}
}

// A TTL below the server's least is refused by the store, and by a server that has another least than it was told.
func TestShortTTL(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsul(t, `session_ttl_min = "10s"`)
	for url, want := range map[string]string{
		"consul://" + server.Addr(): "choose one from 10s",
		server.URL():                "raise the TTL",
	} {
		_, err := open(t, url).Open(t.Context(), "m", 5*time.Second)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "session_ttl_min") {
			t.Errorf("%s: %v; want ErrInvalid with %q", url, err, want)
		}
	}
	session(t, open(t, "consul://"+server.Addr()), "m", 10*time.Second)
}

// A key of something else is not touched.
func TestForeignKey(t *testing.T) {
	t.Parallel()
	url := testserver.ConsulURL(t)
	store := open(t, url+"&prefix=foreign/")
	kv := client(t, url).KV()
	if _, err := kv.Put(&api.KVPair{Key: "foreign/settings", Value: []byte("precious")}, nil); err != nil {
		t.Fatal(err)
	}
	s := session(t, store, "m", time.Minute)
	if _, err := s.Acquire(t.Context(), bid("settings")); !errors.Is(err, driver.ErrCorrupt) || !strings.Contains(err.Error(), "foreign/settings") {
		t.Errorf("Acquire: %v; want ErrCorrupt with the key", err)
	}
	for r, err := range store.List(t.Context(), "") {
		if err != nil || r.Election == "settings" {
			t.Errorf("List yields %+v, %v; want no setting", r, err)
		}
	}
	if kv, _, err := kv.Get("foreign/settings", nil); err != nil || string(kv.Value) != "precious" {
		t.Errorf("the key is %+v, %v", kv, err)
	}
}
