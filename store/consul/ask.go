package consul

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/gotenure/tenure/driver"
)

// Ask asks the holder of the term with this token to resign. A leader that is no member of this library cannot be asked: the error then wraps
// errors.ErrUnsupported.
func (s *Store) Ask(ctx context.Context, election string, token uint64) error {
	if err := checkElection(election); err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	for {
		entry, err := s.read(ctx, s.layout.key(election))
		if err != nil {
			return err
		}
		if err := intact(entry); err != nil {
			return err
		}
		if vacant(entry) || tokenOf(entry) != token {
			return driver.ErrNotHeld
		}
		member, err := s.name(ctx, entry.Session)
		if err != nil {
			return err
		}
		own, err := s.read(ctx, s.layout.member(member, entry.Session))
		if err != nil {
			return err
		}
		if vacant(own) {
			return fmt.Errorf("consul: %q is led by a client of another kind (%s, session %s), which cannot be asked: destroy its session to make it step down: %w",
				election, member, entry.Session, errors.ErrUnsupported)
		}
		// The election has not changed since, or this is for a term that is over and has no effect.
		_, err = s.write(ctx, "ask the leader of "+strconv.Quote(election), change(own.ModifyIndex,
			&api.KVTxnOp{Verb: api.KVSet, Key: own.Key, Flags: flags, Value: withRequest(own.Value, election, token)}))
		if !errors.Is(err, errChanged) {
			return err
		}
	}
}

// withRequest adds a request to those of a session: a line each, with the token and the election's name, which has no newline.
func withRequest(value []byte, election string, token uint64) []byte {
	var text strings.Builder
	for line := range strings.Lines(string(value)) {
		if _, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " "); name != election {
			text.WriteString(line)
		}
	}
	fmt.Fprintf(&text, "%d %s\n", token, election)
	return []byte(text.String())
}

// requests returns those requests that are for terms the session has.
func (s *session) requests(value []byte) map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var asked map[string]uint64
	for line := range strings.Lines(string(value)) {
		number, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		token, err := strconv.ParseUint(number, 10, 64)
		if n := s.standings[name]; err != nil || n == nil || token == 0 || n.reported != token {
			continue
		}
		if asked == nil {
			asked = make(map[string]uint64)
		}
		asked[name] = token
	}
	return asked
}
