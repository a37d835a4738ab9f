//go:build !linux

package sqlite

// fileSystem cannot tell here.
func fileSystem(string) (name string, certain bool, err error) { return "", false, nil }
