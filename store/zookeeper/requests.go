package zookeeper

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"
)

// A node is what a read tells of one.
type node struct {
	data     []byte
	children []string
	stat     *zk.Stat
}

// get reads a node. With a watch, hooks of the path hear of the next change.
func (l *link) get(ctx context.Context, path string, watching bool) (node, error) {
	done, watching := l.arm(watch{path, false}, watching)
	n, err := call(ctx, l, func(c *zk.Conn) (node, error) {
		if !watching {
			data, stat, err := c.Get(path)
			return node{data: data, stat: stat}, err
		}
		data, stat, _, err := c.GetW(path)
		done(err)
		return node{data: data, stat: stat}, err
	})
	return n, err
}

// exists tells whether there is a node. With a watch, hooks of the path hear of its creation, its change or its end.
func (l *link) exists(ctx context.Context, path string, watching bool) (bool, error) {
	done, watching := l.arm(watch{path, false}, watching)
	return call(ctx, l, func(c *zk.Conn) (bool, error) {
		if !watching {
			there, _, err := c.Exists(path)
			return there, err
		}
		there, _, _, err := c.ExistsW(path)
		done(err)
		return there, err
	})
}

// children lists a node's children.
func (l *link) children(ctx context.Context, path string, watching bool) (node, error) {
	done, watching := l.arm(watch{path, true}, watching)
	return call(ctx, l, func(c *zk.Conn) (node, error) {
		if !watching {
			names, stat, err := c.Children(path)
			return node{children: names, stat: stat}, err
		}
		names, stat, _, err := c.ChildrenW(path)
		done(err)
		return node{children: names, stat: stat}, err
	})
}

// heed has hooks of the path hear of the next change of a node, its creation or its end. It asks for nothing when they will anyway.
func (l *link) heed(ctx context.Context, path string) error {
	l.mu.Lock()
	armed := l.armed[watch{path, false}]
	l.mu.Unlock()
	if armed {
		return nil
	}
	_, err := l.exists(ctx, path, true)
	return err
}

// arm says whether a watch has to be set, and is told when it was. The library keeps something for each that is set, so none is set twice.
func (l *link) arm(w watch, wanted bool) (done func(error), set bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !wanted || l.armed[w] {
		return nil, false
	}
	events := l.events
	return func(err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		// An event that came meanwhile may have been this watch's.
		if err == nil && l.events == events {
			l.armed[w] = true
		}
	}, true
}

// barrier returns when a majority of the servers has confirmed that later reads through this link tell nothing older.
func (l *link) barrier(ctx context.Context) error {
	err := l.commit(ctx, "/")
	if errors.Is(err, zk.ErrNoAuth) {
		return nil // which the majority has confirmed too
	}
	return err
}

// commit has a majority agree that a node exists. It returns zk.ErrNoNode when they agree that it does not.
func (l *link) commit(ctx context.Context, path string) error {
	_, err := call(ctx, l, func(c *zk.Conn) ([]zk.MultiResponse, error) {
		answers, err := c.Multi(&zk.CheckVersionRequest{Path: path, Version: -1})
		if err == nil {
			for _, a := range answers {
				err = a.Error
			}
		}
		return answers, err
	})
	return err
}
