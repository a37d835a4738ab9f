package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/gotenure/tenure/driver"
)

func (m *session) readAsks(ctx context.Context) error {
	n, err := m.link.get(ctx, m.node, true)
	if err != nil {
		return m.failed("read "+m.node, err)
	}
	asks := parseAsks(n.data)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asks = asks
	return nil
}

// parseAsks reads requests to resign: lines with a token and an election.
func parseAsks(data []byte) map[string]uint64 {
	asks := make(map[string]uint64)
	for line := range strings.Lines(string(data)) {
		text, election, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if token, err := strconv.ParseUint(text, 10, 64); err == nil {
			asks[election] = token
		}
	}
	return asks
}

// maxAsks is how many requests to resign a session keeps: as many as fit into a node.
const maxAsks = 1000

// Ask asks the holder of the term with this token to resign. A leader that is no member of this library cannot be asked: the error then wraps
// errors.ErrUnsupported.
func (s *Store) Ask(ctx context.Context, election string, token uint64) error {
	if err := driver.CheckName("election", election); err != nil {
		return err
	}
	l, release, err := s.reading(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := l.barrier(ctx); err != nil {
		return failure("ask", err)
	}
	h, err := s.leader(ctx, l, election)
	if err != nil {
		return err
	}
	if !h.record.Held() || h.record.Token != token {
		return driver.ErrNotHeld
	}
	path := s.layout.session(h.record.Leader, h.record.Session)
	for {
		n, err := l.get(ctx, path, false)
		if errors.Is(err, zk.ErrNoNode) {
			return fmt.Errorf("zookeeper: %q is led by a client of another kind (session %s), which cannot be asked: delete its node %s to make it step down: %w",
				election, h.record.Session, h.path, errors.ErrUnsupported)
		}
		if err != nil {
			return failure("ask the leader of "+strconv.Quote(election), err)
		}
		asks := parseAsks(n.data)
		if len(asks) >= maxAsks {
			clear(asks)
		}
		asks[election] = token
		var data strings.Builder
		for _, name := range slices.Sorted(maps.Keys(asks)) {
			fmt.Fprintf(&data, "%d %s\n", asks[name], name)
		}
		_, err = call(ctx, l, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(path, []byte(data.String()), n.stat.Version) })
		if errors.Is(err, zk.ErrBadVersion) {
			continue // somebody else asked
		}
		if errors.Is(err, zk.ErrNoNode) {
			return driver.ErrNotHeld
		}
		return failure("ask the leader of "+strconv.Quote(election), err)
	}
}
