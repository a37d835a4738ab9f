//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package embedded

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// inUse reports whether another server has the data open. etcd itself would wait for it, without end and without a word.
func inUse(dataDir string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(dataDir, "member", "snap", "db"), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	return errors.Is(err, syscall.EWOULDBLOCK), f.Close() // which gives the lock back
}
