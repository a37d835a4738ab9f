package zookeeper

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/gotenure/tenure/driver"
)

var (
	errClosed        = errors.New("zookeeper: store is closed")
	errSessionClosed = errors.New("zookeeper: session is closed")
	errDisconnected  = errors.New("not connected to any server")
	errProtocol      = errors.New("the server does not speak ZooKeeper's protocol")
)

// invalid are the servers' refusals that repeating does not mend, with what does.
var invalid = []struct {
	err    error
	remedy string
}{
	{zk.ErrNoAuth, "give user and password as zookeeper://USER:PASSWORD@HOST, the same as the members that made the nodes, or have their ACLs grant cdrwa (see getAcl and setAcl of zkCli.sh)"},
	{zk.ErrAuthFailed, "check user and password"},
	{zk.ErrInvalidACL, "give user and password, or acl=open"},
	{zk.ErrNoChildrenForEphemerals, "an ephemeral node stands where an election or what leads to it should: remove it, or choose another chroot"},
}

// failure translates an error of a call.
func failure(doing string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, errClosed) {
		return errClosed
	}
	for _, i := range invalid {
		if errors.Is(err, i.err) {
			return fmt.Errorf("zookeeper: %s: %w: %w: %s", doing, driver.ErrInvalid, err, i.remedy)
		}
	}
	return fmt.Errorf("zookeeper: %s: %w", doing, err)
}

// ended returns the error of a context or of a store that has ended.
func (s *Store) ready(ctx context.Context) error {
	if s.ctx.Err() != nil {
		return errClosed
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("zookeeper: %w", err)
	}
	return nil
}
