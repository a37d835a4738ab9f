package zookeeper

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A handshake is what a server says to a connection that begins.
type handshake struct {
	timeout  time.Duration // of the session; 0 or less: it has expired
	session  int64
	password []byte
}

const (
	opPing  = 11
	opClose = -11
)

// A wire is one connection to a server, between it and the client library. It reads along, to know what the library does not tell, and takes away
// the library's pings and its limit of silence, which would renew a session that nobody asked to renew.
type wire struct {
	net.Conn
	quiet   bool // no pings
	began   time.Time
	greeted func(*wire, handshake)
	closed  func() // the server has confirmed the end of the session

	ready    atomic.Bool // the handshake is over
	received atomic.Int64
	closeXID atomic.Int64 // of the request that ends the session; 0: none was sent

	read   parser // used by one reader
	end    sync.Once
	doomed func() // called when the connection is closed
}

// A parser finds frames in a stream, and keeps the beginning of each.
type parser struct {
	header [4]byte
	have   int
	left   int
	head   []byte
}

// longest is how much of a frame a parser keeps: all of a handshake.
const longest = 64

// feed calls frame with the beginning of each frame that ends within the bytes.
func (p *parser) feed(b []byte, frame func(head []byte)) {
	for len(b) > 0 {
		if p.have < len(p.header) {
			n := copy(p.header[p.have:], b)
			p.have += n
			b = b[n:]
			if p.have == len(p.header) {
				p.left = int(binary.BigEndian.Uint32(p.header[:]))
				p.head = p.head[:0]
			}
		} else {
			n := min(p.left, len(b))
			p.head = append(p.head, b[:min(n, longest-len(p.head))]...)
			p.left -= n
			b = b[n:]
		}
		if p.have == len(p.header) && p.left == 0 {
			frame(p.head)
			p.have = 0
		}
	}
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 {
		w.received.Add(1)
		w.read.feed(b[:n], w.frame)
	}
	return n, err
}

func (w *wire) frame(head []byte) {
	if w.ready.CompareAndSwap(false, true) {
		if h, ok := parseHandshake(head); ok {
			_ = w.Conn.SetReadDeadline(time.Time{}) // a connection that is gone says so at the next read
			w.greeted(w, h)
		}
		return
	}
	// xid, zxid, error
	if len(head) >= 16 && w.closeXID.Load() != 0 && int64(int32(binary.BigEndian.Uint32(head))) == w.closeXID.Load() && binary.BigEndian.Uint32(head[12:]) == 0 {
		w.closed()
	}
}

func parseHandshake(head []byte) (handshake, bool) {
	// version, timeout, session, length of the password, password
	if len(head) < 20 {
		return handshake{}, false
	}
	h := handshake{
		timeout: time.Duration(int32(binary.BigEndian.Uint32(head[4:]))) * time.Millisecond,
		session: int64(binary.BigEndian.Uint64(head[8:])),
	}
	if n := int(int32(binary.BigEndian.Uint32(head[16:]))); n > 0 && len(head) >= 20+n {
		h.password = append(h.password, head[20:20+n]...)
	}
	return h, true
}

// Write passes a frame on. The library writes each in one call.
func (w *wire) Write(b []byte) (int, error) {
	if w.ready.Load() && len(b) >= 12 {
		switch int32(binary.BigEndian.Uint32(b[8:])) {
		case opPing:
			if w.quiet && len(b) == 12 {
				return len(b), nil
			}
		case opClose:
			w.closeXID.Store(int64(int32(binary.BigEndian.Uint32(b[4:]))))
		}
	}
	return w.Conn.Write(b)
}

// SetReadDeadline is how the library limits silence. During the handshake the wire has a limit of its own.
func (w *wire) SetReadDeadline(t time.Time) error {
	if w.quiet || !w.ready.Load() {
		return nil
	}
	return w.Conn.SetReadDeadline(t)
}

func (w *wire) Close() error {
	w.end.Do(w.doomed)
	return w.Conn.Close()
}

// probe opens a session with the timeout, ends it, and returns what the server made of the timeout.
func probe(conn net.Conn, timeout time.Duration) (time.Duration, error) {
	h, err := greet(conn, handshake{timeout: timeout})
	if err != nil {
		return 0, err
	}
	return h.timeout, finish(conn)
}

// greet begins a session, or goes on with one.
func greet(conn net.Conn, h handshake) (handshake, error) {
	if _, err := conn.Write(greeting(h)); err != nil {
		return handshake{}, err
	}
	return greeted(conn)
}

func greeting(h handshake) []byte {
	password := h.password
	if len(password) == 0 {
		password = make([]byte, 16)
	}
	frame := binary.BigEndian.AppendUint32(nil, 0)
	frame = binary.BigEndian.AppendUint64(frame, 0)
	frame = binary.BigEndian.AppendUint32(frame, uint32(min(h.timeout.Milliseconds(), 1<<31-1)))
	frame = binary.BigEndian.AppendUint64(frame, uint64(h.session))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(password)))
	return framed(append(frame, password...))
}

func greeted(conn net.Conn) (handshake, error) {
	head, err := readFrame(conn)
	if err != nil {
		return handshake{}, err
	}
	h, ok := parseHandshake(head)
	if !ok {
		return handshake{}, errProtocol
	}
	return h, nil
}

// finish ends the session of a connection.
func finish(conn net.Conn) error {
	if _, err := conn.Write(closing()); err != nil {
		return err
	}
	_, err := readFrame(conn)
	return err
}

func closing() []byte {
	code := int32(opClose)
	return framed(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 1), uint32(code)))
}

func framed(frame []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)
}

func readFrame(conn net.Conn) (head []byte, err error) {
	var p parser
	for buffer := make([]byte, 1); head == nil; {
		if _, err := conn.Read(buffer); err != nil {
			return nil, err
		}
		p.feed(buffer, func(h []byte) { head = append([]byte{}, h...) })
	}
	return head, nil
}
