package testserver

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// A link is one connection through a Proxy.
type link struct {
	client, server net.Conn
	gone           chan struct{} // closed when the link is reset
	resetOnce      sync.Once
}

func newLink(client, server net.Conn) *link {
	return &link{client: client, server: server, gone: make(chan struct{})}
}

// A chunk is what one read brought.
type chunk struct {
	data []byte
	end  error // nil while there is more to come, io.EOF when the side closed, another error when it reset
	due  time.Time
}

type gate func(Direction) (open <-chan struct{}, delay time.Duration)

// run passes both directions on and returns when both have ended.
func (l *link) run(g gate) {
	var both sync.WaitGroup
	both.Go(func() { l.pass(ToServer, l.client, l.server, g) })
	both.Go(func() { l.pass(ToClient, l.server, l.client, g) })
	both.Wait()
	l.reset() // both sides have heard the end; this only frees the sockets
}

func (l *link) pass(d Direction, from, to net.Conn, g gate) {
	// The buffer lets chunks be under way at the same time when they are delayed; one that is full slows the sender, as TCP does.
	chunks := make(chan chunk, 256)
	var reading sync.WaitGroup
	reading.Go(func() { l.read(d, from, chunks, g) })
	l.write(d, to, chunks, g)
	reading.Wait()
}

func (l *link) read(d Direction, from net.Conn, chunks chan<- chunk, g gate) {
	for {
		buffer := make([]byte, 32<<10)
		n, err := from.Read(buffer)
		_, delay := g(d)
		select {
		case chunks <- chunk{buffer[:n], err, time.Now().Add(delay)}:
		case <-l.gone:
			return
		}
		if err != nil {
			return
		}
	}
}

func (l *link) write(d Direction, to net.Conn, chunks <-chan chunk, g gate) {
	for {
		var c chunk
		select {
		case c = <-chunks:
		case <-l.gone:
			return
		}
		select {
		case <-time.After(time.Until(c.due)):
		case <-l.gone:
			return
		}
		// Only now is it known whether the direction is open at the moment the chunk would arrive.
		open, _ := g(d)
		select {
		case <-open:
		case <-l.gone:
			return
		}
		_, err := to.Write(c.data)
		switch {
		case errors.Is(c.end, io.EOF):
			_ = to.(*net.TCPConn).CloseWrite() // the other side may have gone first
			return
		case c.end != nil, err != nil:
			l.reset()
			return
		}
	}
}

// reset ends both connections with a TCP reset.
func (l *link) reset() {
	l.resetOnce.Do(func() {
		close(l.gone)
		reset(l.client)
		reset(l.server)
	})
}

func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0) // without it the close is orderly, which is a smaller fault than meant
	_ = c.Close()
}
