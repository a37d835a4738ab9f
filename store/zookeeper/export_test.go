package zookeeper

import (
	"sync"
	"testing"
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
		err := (&Store{ctx: t.Context()}).finish(c.server, c.handshake)
		if err == nil {
			return
		}
		t.Logf("drop session %s: %v: once more", session, err)
	}
	t.Fatalf("session %s cannot be dropped", session)
}
