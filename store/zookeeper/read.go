package zookeeper

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/gotenure/tenure/driver"
)

// A candidate is a node of the queue.
type candidate struct {
	path   string
	number string
}

// A line is who stands in an election.
type line struct {
	dir        string      // the election's node
	candidates []candidate // first in line first
	written    int64       // the transaction that last wrote the election's node
}

// lineOf picks an election's candidates from its node's children. Curator orders them alike.
func lineOf(dir string, n node) line {
	var all []candidate
	for _, child := range n.children {
		if n, ok := number(child); ok {
			all = append(all, candidate{dir + "/" + child, n})
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(strings.Compare(a.number, b.number), strings.Compare(a.path, b.path))
	})
	return line{dir, all, n.stat.Mzxid}
}

// A holder is who leads.
type holder struct {
	path   string // empty: nobody
	record driver.Record
}

// separator stands between a member's ID and what it publishes. IDs have none.
const separator = 0

// holderOf makes a record of a leader's node.
func holderOf(election, path string, n node) (holder, error) {
	if n.stat.EphemeralOwner == 0 || n.stat.EphemeralOwner == math.MinInt64 { // which marks a container
		return holder{}, fmt.Errorf("zookeeper: %w: node %s of election %q has no session, so nothing ends its term: remove it", driver.ErrCorrupt, path, election)
	}
	h := holder{path, driver.Record{Election: election, Session: sessionID(n.stat.EphemeralOwner), Token: uint64(n.stat.Czxid)}}
	member, value, _ := bytes.Cut(n.data, []byte{separator})
	h.record.Leader, h.record.Value = string(member), value
	if driver.CheckName("member", h.record.Leader) != nil {
		h.record.Leader = h.record.Session // a latch without an ID
	}
	return h, nil
}

// dataOf is what a candidate's node says.
func dataOf(member string, value []byte) []byte {
	data := []byte(member)
	if len(value) > 0 {
		data = append(append(data, separator), value...)
	}
	return data
}

// replacing is what the election's node says when the leader whose node has this czxid publishes another value: data in place of its own node's.
// That one is never written, as the latch behind it sets its watch only once: having heard of a change, it would not hear of the end.
func replacing(czxid int64, data []byte) []byte {
	return append(append(strconv.AppendInt(nil, czxid, 10), separator), data...)
}

// leading reads the node of the first in a line that is not empty, with what it has published since. zk.ErrNoNode: the line is another now.
func (l *link) leading(ctx context.Context, q line, watching bool) (node, error) {
	n, err := l.get(ctx, q.candidates[0].path, watching)
	if err != nil || q.written < n.stat.Czxid {
		return n, err
	}
	election, err := l.get(ctx, q.dir, false)
	if err != nil {
		return n, err
	}
	data, ok := bytes.CutPrefix(election.data, replacing(n.stat.Czxid, nil))
	if ok {
		n.data = data
	} else if election.stat.Mzxid != q.written {
		return n, zk.ErrNoNode // a later leader's may have replaced it
	}
	return n, nil
}

// leader reads who leads, as the link's server knows it.
func (s *Store) leader(ctx context.Context, l *link, election string) (holder, error) {
	dir := s.layout.election(election)
	for {
		children, err := l.children(ctx, dir, false)
		if errors.Is(err, zk.ErrNoNode) {
			return holder{record: driver.Record{Election: election}}, nil
		}
		if err != nil {
			return holder{}, failure("read "+dir, err)
		}
		q := lineOf(dir, children)
		if len(q.candidates) == 0 {
			return holder{record: driver.Record{Election: election}}, nil
		}
		path := q.candidates[0].path
		n, err := l.leading(ctx, q, false)
		if errors.Is(err, zk.ErrNoNode) {
			continue // it has just gone
		}
		if err != nil {
			return holder{}, failure("read "+path, err)
		}
		return holderOf(election, path, n)
	}
}

// Get reads one election's record, after a majority of the servers has confirmed that nothing newer is known.
func (s *Store) Get(ctx context.Context, election string) (driver.Record, error) {
	if err := driver.CheckName("election", election); err != nil {
		return driver.Record{}, err
	}
	l, release, err := s.reading(ctx)
	if err != nil {
		return driver.Record{}, err
	}
	defer release()
	if err := l.barrier(ctx); err != nil {
		return driver.Record{}, failure("read", err)
	}
	h, err := s.leader(ctx, l, election)
	return h.record, err
}

// List yields the records of elections that are held. It reads the nodes one after the other.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		names, err := s.names(ctx, prefix)
		if err != nil {
			yield(driver.Record{}, err)
			return
		}
		for _, name := range names {
			r, err := s.stored(ctx, name)
			if err == nil && !r.Held() {
				continue // it was given up meanwhile
			}
			if !yield(r, err) || err != nil && !errors.Is(err, driver.ErrCorrupt) {
				return
			}
		}
	}
}

// stored reads a record that need not be newer than what List began with.
func (s *Store) stored(ctx context.Context, name string) (driver.Record, error) {
	l, release, err := s.reading(ctx)
	if err != nil {
		return driver.Record{}, err
	}
	defer release()
	h, err := s.leader(ctx, l, name)
	if err != nil {
		h.record.Election = name
	}
	return h.record, err
}

// names returns the elections that have candidates and whose names start with prefix, in order.
func (s *Store) names(ctx context.Context, prefix string) ([]string, error) {
	l, release, err := s.reading(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := l.barrier(ctx); err != nil {
		return nil, failure("list", err)
	}
	// What is below one node has the names of the nodes above.
	from := s.layout.root()
	if slash := strings.LastIndexByte(prefix, '/'); slash >= 0 {
		from = s.layout.election(prefix[:slash])
	}
	var names []string
	for todo := []string{from}; len(todo) > 0; {
		path := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		n, err := l.children(ctx, path, false)
		if errors.Is(err, zk.ErrNoNode) {
			continue
		}
		if err != nil {
			return nil, failure("list "+path, err)
		}
		if name, ok := s.layout.name(path); ok && strings.HasPrefix(name, prefix) && len(lineOf(path, n).candidates) > 0 {
			names = append(names, name)
		}
		for _, child := range n.children {
			below := strings.TrimSuffix(path, "/") + "/" + child
			name, ok := s.layout.name(below)
			if ok && (strings.HasPrefix(name, prefix) || strings.HasPrefix(prefix, name)) {
				todo = append(todo, below)
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// observeLimit bounds a look of a watch, including the time for another connection.
const observeLimit = 5 * time.Second

// Watch yields the election's record and then each later state. It follows the leader's node and the election's, and its children while nobody leads; those who
// only wait do not wake it.
func (s *Store) Watch(ctx context.Context, election string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		if err := driver.CheckName("election", election); err != nil {
			yield(driver.Record{}, err)
			return
		}
		l, release, err := s.reading(ctx)
		if err != nil {
			yield(driver.Record{}, err)
			return
		}
		defer release()
		o := observer{s: s, l: l, election: election, dir: s.layout.election(election), changed: make(chan struct{}, 1)}
		defer l.hook(o.dir, o.signal)()
		defer o.leave()
		var last driver.Record
		for first := true; ; first = false {
			r, err := o.observe(ctx, first)
			if s.ctx.Err() != nil {
				err = errClosed
			} else if ctx.Err() != nil {
				err = fmt.Errorf("zookeeper: watch: %w", ctx.Err())
			}
			if err != nil {
				yield(driver.Record{}, err)
				return
			}
			if first || r.Session != last.Session || r.Token != last.Token || !bytes.Equal(r.Value, last.Value) {
				if !yield(r, nil) {
					return
				}
				last = r
			}
			select {
			case <-o.changed:
			case <-s.ctx.Done():
			case <-ctx.Done():
			}
		}
	}
}

// An observer is one call of Watch.
type observer struct {
	s        *Store
	l        *link
	election string
	dir      string
	changed  chan struct{} // buffer of one
	path     string        // of the leader's node that is hooked
	unhook   func()
}

func (o *observer) signal(zk.EventType) {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

func (o *observer) leave() {
	if o.unhook != nil {
		o.unhook()
	}
	o.path, o.unhook = "", nil
}

// observe reads the state, and has set a watch for what would change it.
func (o *observer) observe(ctx context.Context, first bool) (driver.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, observeLimit)
	defer cancel()
	vacant := driver.Record{Election: o.election}
	if first {
		if err := o.l.barrier(ctx); err != nil {
			return vacant, failure("watch", err)
		}
	}
	for watching := false; ; {
		if err := o.l.heed(ctx, o.dir); err != nil {
			return vacant, failure("watch "+o.dir, err)
		}
		children, err := o.l.children(ctx, o.dir, watching)
		if errors.Is(err, zk.ErrNoNode) {
			o.leave()
			return vacant, nil
		}
		if err != nil {
			return vacant, failure("watch "+o.dir, err)
		}
		q := lineOf(o.dir, children)
		if len(q.candidates) == 0 {
			if !watching {
				watching = true
				continue
			}
			o.leave()
			return vacant, nil
		}
		path := q.candidates[0].path
		if path != o.path {
			o.leave()
			o.path, o.unhook = path, o.l.hook(path, o.signal)
		}
		n, err := o.l.leading(ctx, q, true)
		if errors.Is(err, zk.ErrNoNode) {
			continue
		}
		if err != nil {
			return vacant, failure("watch "+path, err)
		}
		h, err := holderOf(o.election, path, n)
		return h.record, err
	}
}
