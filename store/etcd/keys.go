package etcd

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/gotenure/tenure/driver"
)

// reserved begins the keys that are not part of the recipe. Elections may not be called so.
const reserved = "_tenure/"

// A layout knows where things lie. It is what stands before all keys.
type layout string

// election returns the prefix of the keys of an election's candidates.
func (l layout) election(name string) string { return string(l) + name + "/" }

// candidates returns the range that has all candidates of an election. It may also have keys of elections whose names begin with this one's
// name and a slash: candidate tells.
func (l layout) candidates(name string) (from string, to clientv3.OpOption) {
	prefix := l.election(name)
	return prefix + "0", clientv3.WithRange(prefix + "g")
}

func (l layout) key(election, session string) string { return l.election(election) + session }

// member returns the key that has the ID of a session's member.
func (l layout) member(session string) string { return string(l) + reserved + "sessions/" + session }

// namesakes returns the prefix of a key for each session of a member. Below such a key, after a slash, are requests to resign, by election.
func (l layout) namesakes(member string) string {
	return string(l) + reserved + "members/" + url.PathEscape(member) + "/"
}

func (l layout) asked(member, session, election string) string {
	return l.namesakes(member) + session + "/" + election
}

// split returns the election and the session of a candidate's key; ok is false for other keys.
func (l layout) split(key string) (election, session string, ok bool) {
	name, ok := strings.CutPrefix(key, string(l))
	slash := strings.LastIndexByte(name, '/')
	if !ok || slash < 1 || strings.HasPrefix(name, reserved) {
		return "", "", false
	}
	election, session = name[:slash], name[slash+1:]
	return election, session, leaseOf(session) != clientv3.NoLease
}

// candidate reports whether a key is one of the election's candidates.
func (l layout) candidate(name, key string) bool {
	session, ok := strings.CutPrefix(key, l.election(name))
	return ok && leaseOf(session) != clientv3.NoLease
}

// sessionID returns the ID of the session that a lease is.
func sessionID(id clientv3.LeaseID) string { return strconv.FormatInt(int64(id), 16) }

// leaseOf is the inverse of sessionID; NoLease when no lease has that ID.
func leaseOf(session string) clientv3.LeaseID {
	id, err := strconv.ParseInt(session, 16, 64)
	if err != nil || id <= 0 || sessionID(clientv3.LeaseID(id)) != session {
		return clientv3.NoLease
	}
	return clientv3.LeaseID(id)
}

// intact reports whether a candidate's key is attached to the lease that it is called after. A key that somebody wrote without it would
// outlive its session.
func intact(kv *mvccpb.KeyValue) bool {
	return kv.Lease != 0 && strings.HasSuffix(string(kv.Key), "/"+sessionID(clientv3.LeaseID(kv.Lease)))
}

func corrupt(kv *mvccpb.KeyValue) error {
	return fmt.Errorf("etcd: %w: key %q is attached to lease %x, not to the one it is called after, and would never lapse: delete it", driver.ErrCorrupt, kv.Key, kv.Lease)
}

func checkElection(name string) error {
	if err := driver.CheckName("election", name); err != nil {
		return err
	}
	if strings.HasPrefix(name, reserved) {
		return fmt.Errorf("%w: election %q: names that begin with %q are taken: choose another", driver.ErrInvalid, name, reserved)
	}
	return nil
}
