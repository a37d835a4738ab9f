//go:build unix

package sqlite

import (
	"errors"
	"os"
	"syscall"
)

// syncDirectory makes the names in a directory survive a power cut.
func syncDirectory(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := file.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) { // not every file system can
		return err
	}
	return nil
}
