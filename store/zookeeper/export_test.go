package zookeeper

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Path returns the path of an election's node in a store without chroot.
func Path(election string) string { return layout("").election(election) }

// Name is the inverse of Path.
func Name(path string) (string, bool) { return layout("").name(path) }

// passwords has how to end each ZooKeeper session that was opened, and at which server, as an administrator could who had listened.
var passwords sync.Map

func init() {
	overheard = func(server string, h handshake) { passwords.Store(sessionID(h.session), credential{server, h}) }
}

type credential struct {
	server string
	handshake
}

// DropSession ends a ZooKeeper session behind the back of its client: another connection takes it over and closes it.
func DropSession(t testing.TB, session string) {
	t.Helper()
	value, ok := passwords.Load(session)
	if !ok {
		t.Fatalf("no session %s was opened in this process", session)
	}
	c := value.(credential)
	// The client comes back at once and takes the session from this connection, which may be too slow to close it.
	for range 100 {
		over, err := drop(c)
		if over {
			return
		}
		t.Logf("drop session %s: %v: once more", session, err)
	}
	t.Fatalf("session %s cannot be dropped", session)
}

func drop(c credential) (over bool, err error) {
	conn, err := net.DialTimeout("tcp", c.server, 10*time.Second)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }() // the server has closed it
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return false, err
	}
	// Both at once, so that the client has no time to come back between them.
	if _, err := conn.Write(append(greeting(c.handshake), closing()...)); err != nil {
		return false, err
	}
	h, err := greeted(conn)
	if err != nil {
		return false, err
	}
	if h.session != c.session {
		return true, nil
	}
	_, err = readFrame(conn)
	return err == nil, err
}
