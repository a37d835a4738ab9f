//go:build !linux

package sqlite

// whoHolds says which process has the lock for writing, for an error.
func whoHolds(string) string { return "another process is in the middle of a write" }

// whoHasDeleted describes the processes that have a file open that was at the path and was deleted. That cannot be found out here.
func whoHasDeleted(string) []string { return nil }

// whoMixes describes a process that uses the log at the path, but not the file there. That cannot be found out here.
func whoMixes(string) string { return "" }
