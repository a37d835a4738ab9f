package consul

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/gotenure/tenure/driver"
)

// What a token has to allow.
const (
	toUseSessions = 1 << iota
	toReadKeys
	toWriteKeys
)

var rules = map[uint32]string{
	toUseSessions: `session_prefix "" { policy = "write" }`,
	toReadKeys:    `key_prefix "PREFIX" { policy = "read" }`,
	toWriteKeys:   `key_prefix "PREFIX" { policy = "write" }`,
}

// failed translates an error of a request. The caller's context decides what it is when it has ended.
func (s *Store) failed(ctx context.Context, right uint32, doing string, err error) error {
	switch {
	case err == nil:
		s.allowed.Or(right)
		return nil
	case s.ctx.Err() != nil:
		return errClosed
	case ctx.Err() != nil:
		return fmt.Errorf("consul: %s: %w", doing, ctx.Err())
	}
	if status := (api.StatusError{}); errors.As(err, &status) && status.Code == http.StatusForbidden || refused(err.Error()) {
		return s.forbidden(right, doing, err)
	}
	return fmt.Errorf("consul: %s: %w", doing, err)
}

// forbidden is ErrInvalid until the first time that the like was allowed. Later the token was revoked or is being replaced, and that may pass.
func (s *Store) forbidden(right uint32, doing string, err error) error {
	rule := strings.ReplaceAll(rules[right], "PREFIX", s.opts.Prefix)
	if s.allowed.Load()&right != 0 {
		return fmt.Errorf("consul: %s: %w: the ACL token was accepted before and is not any more: replace it, or give it back the rule %s", doing, err, rule)
	}
	return fmt.Errorf("consul: %w: %s: %w: use an ACL token whose policy has the rule %s", driver.ErrInvalid, doing, err, rule)
}

// refused reports whether the text of an error of a transaction's operation says that the token does not allow it.
func refused(what string) bool {
	return strings.Contains(what, "Permission denied") || strings.Contains(what, "ACL not found")
}

// read reads a key with the consistency that Consul calls consistent; nil: there is none.
func (s *Store) read(ctx context.Context, key string) (*api.KVPair, error) {
	call, cancel := s.bound(ctx)
	defer cancel()
	entry, _, err := s.client.KV().Get(key, (&api.QueryOptions{RequireConsistent: true}).WithContext(call))
	return entry, s.failed(ctx, toReadKeys, fmt.Sprintf("read key %q", key), err)
}

const (
	// waitTime is how long a server holds a request back while nothing changes. It adds a sixteenth, by chance.
	waitTime = 10 * time.Second

	// silence is when a request that the server has not answered will not be: the connection is dead, or the server is.
	silence = waitTime + waitTime/16 + 3*time.Second
)

var errSilent = fmt.Errorf("no answer within %v, although Consul answers a waiting request after %v: the connection or the server is dead", silence, waitTime)

// wait reads a key once its index is not the one given any more, or the time has passed. 0: at once. It returns the index to wait for next.
func (s *Store) wait(ctx context.Context, key string, index uint64, limit time.Duration, consistent bool) (entry *api.KVPair, next uint64, err error) {
	next, err = s.waitWith(ctx, fmt.Sprintf("wait for key %q", key), index, limit, consistent, func(q *api.QueryOptions) (meta *api.QueryMeta, err error) {
		entry, meta, err = s.client.KV().Get(key, q)
		return meta, err
	})
	return entry, next, err
}

// waitTree does so with the keys below a prefix.
func (s *Store) waitTree(ctx context.Context, prefix string, index uint64, limit time.Duration) (entries api.KVPairs, next uint64, err error) {
	next, err = s.waitWith(ctx, fmt.Sprintf("wait for keys below %q", prefix), index, limit, false, func(q *api.QueryOptions) (meta *api.QueryMeta, err error) {
		entries, meta, err = s.client.KV().List(prefix, q)
		return meta, err
	})
	return entries, next, err
}

func (s *Store) waitWith(ctx context.Context, doing string, index uint64, limit time.Duration, consistent bool, read func(*api.QueryOptions) (*api.QueryMeta, error)) (uint64, error) {
	call, cancel := s.bound(ctx)
	defer cancel()
	call, end := context.WithTimeoutCause(call, limit+silence-waitTime, errSilent)
	defer end()
	q := &api.QueryOptions{WaitIndex: index, WaitTime: limit, RequireConsistent: consistent}
	meta, err := read(q.WithContext(call))
	if err != nil {
		if ctx.Err() == nil && s.ctx.Err() == nil && errors.Is(context.Cause(call), errSilent) {
			err = errSilent
		}
		return index, s.failed(ctx, toReadKeys, doing, err)
	}
	s.allowed.Or(toReadKeys)
	if meta.LastIndex < index {
		return 0, nil // as after a restore: begin anew
	}
	return meta.LastIndex, nil
}

// errChanged says that the condition of a transaction was not met.
var errChanged = errors.New("changed meanwhile")

// errDelayed says that a lock cannot be taken for a while, because of the lock-delay of a session that has ended.
var errDelayed = errors.New("under the lock-delay of a session that has ended")

// A change is a write under the condition that the key still has an index; 0: that there is no such key.
func change(index uint64, write *api.KVTxnOp) api.TxnOps {
	condition := &api.KVTxnOp{Verb: api.KVCheckIndex, Key: write.Key, Index: index}
	if index == 0 {
		condition = &api.KVTxnOp{Verb: api.KVCheckNotExists, Key: write.Key}
	}
	return api.TxnOps{{KV: condition}, {KV: write}}
}

// write makes a transaction whose first operation is its condition. It returns the index of the last write. errChanged, errDelayed, driver.ErrSessionLost: it has had no effect.
func (s *Store) write(ctx context.Context, doing string, ops api.TxnOps) (uint64, error) {
	call, cancel := s.bound(ctx)
	defer cancel()
	ok, r, _, err := s.client.Txn().Txn(ops, (&api.QueryOptions{}).WithContext(call))
	if err != nil {
		return 0, s.failed(ctx, toWriteKeys, doing, err)
	}
	if ok {
		s.allowed.Or(toWriteKeys)
		for i := len(r.Results) - 1; i >= 0; i-- {
			if kv := r.Results[i].KV; kv != nil {
				return kv.ModifyIndex, nil
			}
		}
		return 0, fmt.Errorf("consul: %s: the answer has no index", doing)
	}
	what := "no reason was given"
	for _, e := range r.Errors {
		what = e.What
		switch {
		case refused(what):
			return 0, s.forbidden(toWriteKeys, doing, errors.New(what))
		case strings.Contains(what, "invalid session"):
			return 0, driver.ErrSessionLost
		case strings.Contains(what, "lock delay"):
			return 0, errDelayed
		case e.OpIndex == 0 || strings.HasPrefix(what, "failed "):
			return 0, errChanged
		}
	}
	return 0, fmt.Errorf("consul: %s: %s", doing, what)
}

// tree reads the entries below a prefix.
func (s *Store) tree(ctx context.Context, prefix string) (api.KVPairs, error) {
	call, cancel := s.bound(ctx)
	defer cancel()
	entries, _, err := s.client.KV().List(prefix, (&api.QueryOptions{RequireConsistent: true}).WithContext(call))
	return entries, s.failed(ctx, toReadKeys, fmt.Sprintf("read keys below %q", prefix), err)
}
