package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotenure/tenure/driver"
)

var (
	errClosed        = errors.New("etcd: store is closed")
	errSessionClosed = errors.New("etcd: session is closed")
	errDisconnected  = errors.New("etcd: the connection is lost")
)

// invalid are the server's refusals that repeating does not mend, with what does.
var invalid = []struct {
	err    error
	remedy string
}{
	{rpctypes.ErrPermissionDenied, "grant the user's role readwrite on the elections' keys (NAME/…) and on " + reserved + "…, both after the store's prefix"},
	{rpctypes.ErrUserEmpty, "the server wants authentication: give a user and a password, or a client certificate"},
	{rpctypes.ErrAuthFailed, "check user and password"},
	{rpctypes.ErrAuthNotEnabled, "leave out user and password, or enable authentication at the server"},
	{rpctypes.ErrRequestTooLarge, "shorten the value, or raise --max-request-bytes at the server"},
	{rpctypes.ErrLeaseTTLTooLarge, "choose a shorter TTL"},
	{rpctypes.ErrTooManyOps, "raise --max-txn-ops at the server to its default of 128"},
}

// failure translates an error of a call.
func failure(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	err = rpctypes.Error(err)
	for _, i := range invalid {
		if errors.Is(err, i.err) {
			return fmt.Errorf("etcd: %s: %w: %w: %s", doing, driver.ErrInvalid, err, i.remedy)
		}
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("etcd: %s: %w", doing, driver.ErrSessionLost)
	}
	if cause := ctx.Err(); cause != nil {
		return fmt.Errorf("etcd: %s: %w", doing, cause)
	}
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return fmt.Errorf("etcd: %s: %w: compact, defragment and etcdctl alarm disarm, or raise --quota-backend-bytes", doing, err)
	}
	if s, ok := status.FromError(err); ok && s.Code() == codes.ResourceExhausted {
		// What the client itself says of a message that is too long, before it sends anything, comes with this code only.
		return fmt.Errorf("etcd: %s: %w: %w", doing, driver.ErrInvalid, err)
	}
	return fmt.Errorf("etcd: %s: %w", doing, err)
}
