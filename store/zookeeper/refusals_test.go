package zookeeper_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/zookeeper"
)

// A URL that is wrong says what is, and shows no password.
func TestURLIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ url, says string }{
		{"zk://127.0.0.1", "want zookeeper://"},
		{"zookeeper://", "host"},
		{"zookeeper://127.0.0.1:0", "host"},
		{"zookeeper://127.0.0.1,", "host"},
		{"zookeeper://127.0.0.1:port", "host"},
		{"zookeeper://user@127.0.0.1", "password is missing"},
		{"zookeeper://user:@127.0.0.1", "password is missing"},
		{"zookeeper://user:secret@127.0.0.1/a?chroot=b", `unknown parameter "chroot"`},
		{"zookeeper://user:sec/ret@127.0.0.1", "percent-encode"},
		{"zookeeper://user:secret@127.0.0.1/a//b", "chroot"},
		{"zookeeper://127.0.0.1/zookeeper/quota", "chroot"},
		{"zookeeper://127.0.0.1/a/..", "chroot"},
		{"zookeeper://127.0.0.1?acl=mine", "acl"},
		{"zookeeper://127.0.0.1?acl=creator", "acl"},
		{"zookeeper://user:secret@127.0.0.1?acl=open&acl=creator", "2 times"},
		{"zookeeper://127.0.0.1?tls=perhaps", "tls"},
		{"zookeeper://127.0.0.1?tls=false&cacert=x", "tls=false"},
		{"zookeeper://127.0.0.1?cert=x", "belong together"},
		{"zookeeper://127.0.0.1?cacert=/nonexistent", "cacert"},
	} {
		_, err := zookeeper.Open(deadline(t), c.url)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "sec/ret") {
			t.Errorf("%s: %v; want ErrInvalid with %q, and no password", c.url, err, c.says)
		}
	}
}

// What does not answer, or not as ZooKeeper does, is named, within the context's time.
func TestNoServer(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n" + strings.Repeat("x", 2000)))
			_ = conn.Close()
		}
	}()
	for _, address := range []string{listener.Addr().String(), "127.0.0.1:1"} {
		ctx, cancel := context.WithTimeout(deadline(t), 10*time.Second)
		defer cancel()
		began := time.Now()
		_, err = zookeeper.Open(ctx, "zookeeper://user:secret@"+address)
		if err == nil || !strings.Contains(err.Error(), address) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", address, err)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s: it took %v", address, took)
		}
	}
}

// The bounds of a TTL follow from the servers' settings, and an error names both.
func TestTTLIsRefused(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t, "minSessionTimeout=3000", "maxSessionTimeout=30000")
	store := use(t, z.URL())
	info := store.Info()
	if info.MinTTL < 2*time.Second || info.MinTTL > 2010*time.Millisecond || info.MaxTTL != 20*time.Second {
		t.Errorf("bounds are %v and %v", info.MinTTL, info.MaxTTL)
	}
	for _, ttl := range []time.Duration{time.Second, 21 * time.Second} {
		_, err := store.Open(deadline(t), "m", ttl)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "SessionTimeout") {
			t.Errorf("TTL %v: %v", ttl, err)
		}
	}
	s := openSession(t, store, "m", info.MaxTTL)
	if grant, err := s.KeepAlive(deadline(t)); err != nil || grant.TTL != info.MaxTTL {
		t.Errorf("granted %+v, %v", grant, err)
	}
}

// Nodes belong to the user who made them; another one, or none, gets an error that says what to do, also when permissions change while it waits.
func TestACL(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	with := func(user, chroot string) string {
		return "zookeeper://" + user + z.Addr() + chroot
	}
	owner := openSession(t, use(t, with("app:s%40cret@", "/own")), "owner", time.Minute)
	held := acquire(t, owner, "e")
	same := openSession(t, use(t, with("app:s%40cret@", "/own")), "same", time.Minute)
	if _, err := same.Acquire(deadline(t), driver.Bid{Election: "e", Queue: true}); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("the same user: %v", err)
	}
	for _, user := range []string{"", "app:wrong@", "other:s%40cret@"} {
		_, err := zookeeper.Open(deadline(t), with(user, "/own"))
		if err == nil { // the chroot's node itself may be looked at
			store := use(t, with(user, "/own"))
			if _, err = store.Get(deadline(t), "e"); err == nil {
				_, err = store.Open(deadline(t), "m", time.Minute)
			}
		}
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "zookeeper://USER:PASSWORD@HOST") || strings.Contains(err.Error(), "cret") {
			t.Errorf("user %q: %v; want ErrInvalid with a remedy, and no password", user, err)
		}
	}
	// With acl=open anybody may join.
	open := openSession(t, use(t, with("app:s%40cret@", "/open?acl=open")), "open", time.Minute)
	first := acquire(t, open, "e")
	anybody := openSession(t, use(t, with("", "/open")), "anybody", time.Minute)
	if _, err := anybody.Acquire(deadline(t), driver.Bid{Election: "e", Queue: true}); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("anybody: %v", err)
	}
	if err := open.Release(deadline(t), "e", first.Token); err != nil {
		t.Fatal(err)
	}
	if r := acquire(t, anybody, "e"); r.Leader != "anybody" {
		t.Errorf("the leader is %+v", r)
	}

	// The permission to read is taken away while a member waits: it is told when it tries.
	operator := connect(t, z.URL())
	if err := operator.AddAuth("digest", []byte("app:s@cret")); err != nil {
		t.Fatal(err)
	}
	if _, err := operator.SetACL("/own/e", zk.DigestACL(zk.PermAll, "root", "root"), -1); err != nil {
		t.Fatal(err)
	}
	if _, err := same.Acquire(deadline(t), driver.Bid{Election: "e", Queue: true}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("without permission: %v", err)
	}
	if grant, err := owner.KeepAlive(deadline(t)); err != nil || grant.Holds != nil {
		t.Errorf("the leader needs no permission to go on, yet %+v, %v", grant, err)
	}
	if err := operator.AddAuth("digest", []byte("root:root")); err != nil {
		t.Fatal(err)
	}
	if _, err := operator.SetACL("/own/e", zk.DigestACL(zk.PermAll, "app", "s@cret"), -1); err != nil {
		t.Fatal(err)
	}
	if err := owner.Release(deadline(t), "e", held.Token); err != nil {
		t.Fatal(err)
	}
	if r := acquire(t, same, "e"); r.Token <= held.Token {
		t.Errorf("token %d after %d", r.Token, held.Token)
	}
}

// User and password are given anew after each reconnection.
func TestCredentialsSurviveReconnection(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	proxy := testserver.StartProxy(t, z.Addr())
	s := openSession(t, use(t, "zookeeper://app:secret@"+proxy.Addr()), "m", time.Minute)
	held := acquire(t, s, "e")
	for range 3 {
		proxy.Drop()
		var r driver.Record
		again(t, func(ctx context.Context) (err error) {
			r, err = s.Acquire(ctx, driver.Bid{Election: "e", Value: []byte(time.Now().String())})
			return err
		})
		if r.Token != held.Token {
			t.Fatalf("token %d became %d", held.Token, r.Token)
		}
	}
}
