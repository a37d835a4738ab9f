//go:build !unix

package sqlite

// syncDirectory has nothing to do: directories cannot be synced here.
func syncDirectory(string) error { return nil }
