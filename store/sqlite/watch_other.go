//go:build !linux

package sqlite

import "errors"

// A watch is not to be had here.
type watch struct{ stirred chan struct{} }

func newWatch(string, bool) (*watch, error) {
	return nil, errors.New("no file notifications on this system")
}

func (w *watch) close() {}
