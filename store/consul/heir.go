package consul

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/gotenure/tenure/driver"
)

// Consul has no queue, but one place in it: one of those who wait locks the heir's key of the election and the leader, with the value that it would publish. A
// leader that resigns locks the election for that session, in the same transaction in which it unlocks it for its own. So a handover takes one write, and nobody
// but the heir has to do anything. Without an heir all who wait try to lock it.

// spread is within which time those who wait for a new leader look whether it has an heir, by chance.
const spread = 100 * time.Millisecond

// An offer is what a session has done to be the next leader of an election.
type offer struct {
	key     string    // which it has locked for that, or may have; empty: none
	number  uint64    // of the write
	sending bool      // which has not been answered
	given   bool      // the leader seems to have given the election, so the key has gone
	doubt   time.Time // until when a write may still have an effect although its caller has given up
}

// heir returns the key of the heir for an election that a session leads, whose own key is given. It lies below that, so that one request watches both.
func heir(key, election string) string { return key + "/" + escape(election) }

// offer makes the session the heir of a leader, if that is one of this library's and has none. When it fails, all who wait will try.
func (s *session) offer(ctx context.Context, n *standing, leader string, value []byte) {
	select {
	case <-time.After(rand.N(spread)):
	case <-ctx.Done():
		return
	}
	name, err := s.store.name(ctx, leader)
	if err != nil {
		return
	}
	member := s.store.layout.member(name, leader)
	key := heir(member, n.election)
	s.mu.Lock()
	earlier := n.heir.key
	s.mu.Unlock()
	if earlier != "" && earlier != key && (s.withdraw(ctx, n) != nil || s.offers(n)) {
		return // for it can keep one in mind
	}
	read := api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVGet, Key: member}}, {KV: &api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: key}}}
	call, cancel := s.store.bound(ctx)
	defer cancel()
	ok, r, _, err := s.store.client.Txn().Txn(read, (&api.QueryOptions{}).WithContext(call))
	if err != nil || !ok || len(r.Results) != 2 || r.Results[1].KV.CreateIndex != 0 {
		return
	}
	s.mu.Lock()
	earlier = n.heir.key
	n.heir.key, n.heir.number, n.heir.sending, n.heir.given = key, n.heir.number+1, true, false
	s.mu.Unlock()
	_, err = s.store.write(ctx, "wait for "+strconv.Quote(n.election), change(0, s.lockOp(key, encode(value, 0))))
	s.mu.Lock()
	defer s.mu.Unlock()
	n.heir.sending = false
	switch {
	case errors.Is(err, errChanged), errors.Is(err, errDelayed), errors.Is(err, driver.ErrInvalid):
		n.heir.key = earlier // by which an earlier one, that was late, may have locked it
	case err != nil:
		n.heir.doubt = time.Now().Add(doubtful)
	}
}

// offers reports whether the session has offered to be the next leader, or may have.
func (s *session) offers(n *standing) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return n.heir.key != ""
}

// withdraw ends an offer, if there is one. One whose answer was lost may still come to be: then it is withdrawn again, by renewals.
func (s *session) withdraw(ctx context.Context, n *standing) error {
	s.mu.Lock()
	h := n.heir
	s.mu.Unlock()
	if h.key == "" {
		return nil
	}
	settled := !h.sending && !time.Now().Before(h.doubt)
	own := &api.KVTxnOp{Verb: api.KVCheckSession, Key: h.key, Session: s.id}
	_, err := s.store.write(ctx, "leave the queue of "+strconv.Quote(n.election), api.TxnOps{{KV: own}, {KV: &api.KVTxnOp{Verb: api.KVDelete, Key: h.key}}})
	if err != nil && !errors.Is(err, errChanged) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if settled && n.heir.number == h.number { // else there is another since, or may be
		n.heir.key = ""
	}
	s.tidy(n)
	return nil
}

// withdrawStrays withdraws offers that nobody waits by any more.
func (s *session) withdrawStrays(ctx context.Context) {
	s.mu.Lock()
	var strays []*standing
	for _, n := range s.standings {
		if n.heir.key != "" && n.wait == nil && n.calls == 0 {
			strays = append(strays, n)
		}
	}
	s.mu.Unlock()
	for _, n := range strays {
		if s.withdraw(ctx, n) != nil {
			return // the next renewal goes on
		}
	}
}

// bequeath gives a term that the session has reported to the heir. It reports false when that had no effect: there is none, or something has changed.
func (s *session) bequeath(ctx context.Context, n *standing, at uint64) (bool, error) {
	s.mu.Lock()
	next := s.heirs[heir(s.key, n.election)]
	s.mu.Unlock()
	if next == nil {
		return false, nil
	}
	ops := append(change(at, s.unlockOp(n.key)),
		&api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVCheckIndex, Key: next.Key, Index: next.ModifyIndex}}, // delete-cas is content when there is none
		&api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVDelete, Key: next.Key}},
		&api.TxnOp{KV: lockFor(next.Session, n.key, next.Value)})
	_, err := s.store.write(ctx, "hand "+strconv.Quote(n.election)+" over", ops)
	if errors.Is(err, errChanged) || errors.Is(err, errDelayed) || errors.Is(err, driver.ErrSessionLost) {
		return false, nil // whose session is lost, the other attempt tells
	}
	return err == nil, err
}
