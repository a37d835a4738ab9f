package consul

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/gotenure/tenure/driver"
)

// Get reads an election's record. The token of a vacant one is not known.
func (s *Store) Get(ctx context.Context, election string) (driver.Record, error) {
	if err := checkElection(election); err != nil {
		return driver.Record{}, err
	}
	if err := s.ready(ctx); err != nil {
		return driver.Record{}, err
	}
	entry, err := s.read(ctx, s.layout.key(election))
	if err != nil {
		return driver.Record{}, err
	}
	return s.record(ctx, election, entry)
}

// record makes a record of an entry, which may be nil.
func (s *Store) record(ctx context.Context, election string, entry *api.KVPair) (driver.Record, error) {
	if err := intact(entry); err != nil {
		return driver.Record{}, err
	}
	if vacant(entry) {
		return driver.Record{Election: election}, nil
	}
	name, err := s.name(ctx, entry.Session)
	if err != nil {
		return driver.Record{}, err
	}
	token, value := decode(entry)
	return driver.Record{Election: election, Leader: name, Session: entry.Session, Token: token, Value: value}, nil
}

// name returns the name of a session: of one of this library's, its member's ID.
func (s *Store) name(ctx context.Context, session string) (string, error) {
	if name, ok := s.names.get(session); ok {
		return name, nil
	}
	call, cancel := s.bound(ctx)
	defer cancel()
	info, _, err := s.client.Session().Info(session, (&api.QueryOptions{}).WithContext(call))
	if err = s.failed(ctx, toUseSessions, fmt.Sprintf("read session %s", session), err); err != nil {
		return "", err
	}
	if info == nil || info.Name == "" { // it has ended, or the token may not read it
		return "session " + session, nil
	}
	s.names.put(session, info.Name)
	return info.Name, nil
}

// manyNames is from how many unknown sessions on it is cheaper to ask for all at once.
const manyNames = 4

// List yields the records whose names start with prefix, as they all were at one moment. A key that
// nobody holds and that has other flags than a lock is none of them.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		if err := s.ready(ctx); err != nil {
			yield(driver.Record{}, err)
			return
		}
		type named struct {
			election string
			entry    *api.KVPair
		}
		entries, err := s.tree(ctx, s.layout.below(prefix))
		var found []named
		unknown := make(map[string]bool)
		for _, entry := range entries {
			name, ok := s.layout.election(entry.Key)
			if !ok || !strings.HasPrefix(name, prefix) || vacant(entry) && entry.Flags != flags {
				continue
			}
			found = append(found, named{name, entry})
			if _, ok := s.names.get(entry.Session); !ok && entry.Session != "" {
				unknown[entry.Session] = true
			}
		}
		if err == nil && len(unknown) >= manyNames {
			err = s.learn(ctx)
		}
		if err != nil {
			yield(driver.Record{}, err)
			return
		}
		slices.SortFunc(found, func(a, b named) int { return cmp.Compare(a.election, b.election) })
		for _, f := range found {
			if !yield(s.record(ctx, f.election, f.entry)) {
				return
			}
		}
	}
}

// learn reads the names of all sessions.
func (s *Store) learn(ctx context.Context) error {
	call, cancel := s.bound(ctx)
	defer cancel()
	all, _, err := s.client.Session().List((&api.QueryOptions{}).WithContext(call))
	for _, info := range all {
		if info.Name != "" {
			s.names.put(info.ID, info.Name)
		}
	}
	return s.failed(ctx, toUseSessions, "read sessions", err)
}

// Watch yields the election's record and then each later state.
func (s *Store) Watch(ctx context.Context, election string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		if err := checkElection(election); err != nil {
			yield(driver.Record{}, err)
			return
		}
		if err := s.ready(ctx); err != nil {
			yield(driver.Record{}, err)
			return
		}
		key := s.layout.key(election)
		var last driver.Record
		var next uint64
		for first := true; ; first = false {
			entry, after, err := s.wait(ctx, key, next, waitTime, true)
			var r driver.Record
			if err == nil {
				r, err = s.record(ctx, election, entry)
			}
			if err != nil {
				yield(driver.Record{}, err)
				return
			}
			next = after
			if first || r.Session != last.Session || r.Leader != last.Leader || r.Token != last.Token || string(r.Value) != string(last.Value) {
				last = r
				if !yield(r, nil) {
					return
				}
			}
		}
	}
}
