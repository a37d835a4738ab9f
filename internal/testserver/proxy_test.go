package testserver

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// startEcho starts a server that sends back each line.
func startEcho(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c) // it ends in whatever way the test wants
				_ = c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

type client struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

func dial(t *testing.T, addr string) *client {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &client{t: t, conn: c, r: bufio.NewReader(c)}
}

func (c *client) send(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.conn, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) receive(within time.Duration) (string, error) {
	c.t.Helper()
	if err := c.conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		c.t.Fatal(err)
	}
	return c.r.ReadString('\n')
}

func (c *client) want(line string) {
	c.t.Helper()
	if got, err := c.receive(10 * time.Second); err != nil || got != line+"\n" {
		c.t.Fatalf("received %q, %v; want %q", got, err, line)
	}
}

func (c *client) wantNothing() {
	c.t.Helper()
	if got, err := c.receive(50 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("received %q, %v; want nothing", got, err)
	}
}

func TestProxyPasses(t *testing.T) {
	c := dial(t, StartProxy(t, startEcho(t)).Addr())
	c.send("a")
	c.want("a")
	if err := c.conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.receive(10 * time.Second); !errors.Is(err, io.EOF) {
		t.Fatalf("after the end: %v; want EOF, passed there and back", err)
	}
}

func TestProxyBlackhole(t *testing.T) {
	for _, d := range []Direction{ToServer, ToClient} {
		p := StartProxy(t, startEcho(t))
		c := dial(t, p.Addr())
		c.send("before")
		c.want("before")
		p.Blackhole(d)
		c.send("during")
		c.wantNothing()
		p.Heal()
		c.want("during")
	}
}

func TestProxyDropLosesWhatIsHeld(t *testing.T) {
	p := StartProxy(t, startEcho(t))
	c := dial(t, p.Addr())
	c.send("before")
	c.want("before")
	p.Blackhole(ToClient)
	c.send("lost")
	c.wantNothing()
	p.Drop()
	if got, err := c.receive(10 * time.Second); err == nil || errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("received %q, %v; want a reset", got, err)
	}
	p.Heal()
	c = dial(t, p.Addr())
	c.send("after")
	c.want("after")
}

func TestProxyRefuse(t *testing.T) {
	p := StartProxy(t, startEcho(t))
	c := dial(t, p.Addr())
	c.send("before")
	c.want("before")
	p.Refuse()
	if conn, err := net.Dial("tcp", p.Addr()); err == nil {
		_ = conn.Close()
		t.Fatal("connected while the proxy refuses")
	}
	c.send("goes on")
	c.want("goes on")
	p.Heal()
	c = dial(t, p.Addr())
	c.send("after")
	c.want("after")
}

func TestProxyDelay(t *testing.T) {
	p := StartProxy(t, startEcho(t))
	c := dial(t, p.Addr())
	p.Delay(ToServer, 100*time.Millisecond)
	began := time.Now()
	c.send("a")
	c.want("a")
	if took := time.Since(began); took < 100*time.Millisecond {
		t.Fatalf("answered after %v; want a delay of at least 100ms", took)
	}
}

func TestProxyOfServerThatIsDown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", StartProxy(t, addr).Addr())
	if err != nil {
		return // the proxy's reset came before the dial returned
	}
	c := &client{t: t, conn: conn, r: bufio.NewReader(conn)}
	if got, err := c.receive(10 * time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("received %q, %v; want the connection to end", got, err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestProxyURL(t *testing.T) {
	p := StartProxy(t, startEcho(t))
	got := p.URL("postgres://u:p@127.0.0.1:1/db?sslmode=disable")
	if want := "postgres://u:p@" + p.Addr() + "/db?sslmode=disable"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}
