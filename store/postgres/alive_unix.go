//go:build unix

package postgres

import (
	"context"
	"net"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
)

// shouldPing reports whether an idle connection looks as if the server had ended it: something has arrived, if only the end of the stream. Looking costs a system
// call, where a ping costs a round trip on the way to every handover.
func shouldPing(_ context.Context, p pgxpool.ShouldPingParams) bool {
	conn := p.Conn.PgConn().Conn()
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok { // TLS
		conn = t.NetConn()
	}
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	quiet := false
	// Control, not Read: pgx may have left a goroutine in Read, for which Read here would wait.
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		quiet = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK
	})
	return err != nil || !quiet
}
