package sqlite

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Bytes that SQLite locks: for writing, in the index of the log; and in the file itself, where only a process that uses no log, or wants the file for itself
// alone, has a lock for writing.
const (
	logWriter    = 120
	fileReserved = 0x40000001
	fileShared   = 0x40000002
)

// whoHolds says which process has the lock for writing, for an error. It is a courtesy: processes of other users cannot be seen.
func whoHolds(path string) string {
	for pid, fds := range openFiles() {
		for fd, name := range fds {
			if name != path && name != path+"-shm" {
				continue
			}
			info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, fd))
			switch {
			case err != nil:
			case name == path && (locks(string(info), fileReserved) || locks(string(info), fileShared)):
				return describe(pid) + " has locked the whole file: have it end its transaction, without PRAGMA locking_mode = EXCLUSIVE, or end it"
			case name != path && locks(string(info), logWriter):
				return describe(pid) + " is in the middle of a write"
			}
		}
	}
	return "a process that cannot be seen from here is in the middle of a write"
}

// locks reports whether what the kernel says of an open file has a lock for writing on a byte.
func locks(fdinfo string, at int64) bool {
	for line := range strings.Lines(fdinfo) {
		// lock:	1: OFDLCK ADVISORY  WRITE -1 fe:00:1234 120 120
		fields := strings.Fields(line)
		if len(fields) < 8 || fields[0] != "lock:" || !slices.Contains(fields, "WRITE") {
			continue
		}
		first, err1 := strconv.ParseInt(fields[len(fields)-2], 10, 64)
		last, err2 := strconv.ParseInt(fields[len(fields)-1], 10, 64)
		if fields[len(fields)-1] == "EOF" {
			last, err2 = 1<<62, nil
		}
		if err1 == nil && err2 == nil && first <= at && at <= last {
			return true
		}
	}
	return false
}

// whoHasDeleted describes the processes that have a file open that was at the path, or beside it as its log, and was deleted.
func whoHasDeleted(path string) []string {
	var found []string
	for pid, fds := range openFiles() {
		for _, name := range fds {
			if old, deleted := strings.CutSuffix(name, " (deleted)"); deleted && (old == path || old == path+"-wal" || old == path+"-shm") {
				found = append(found, describe(pid))
				break
			}
		}
	}
	return found
}

// whoMixes describes a process that uses the log at the path, but not the file there: the file was replaced under it, alone, and whoever opened the new one
// with that log would read and write a mixture of both. It is "" when there is none. Every connection opens the file before its log.
func whoMixes(path string) string {
	for pid, fds := range openFiles() {
		var files, logs int
		for _, name := range fds {
			switch name {
			case path:
				files++
			case path + "-wal":
				logs++
			}
		}
		if logs > files {
			return describe(pid)
		}
	}
	return ""
}

// openFiles yields the processes that can be seen, each with the names of its open files by descriptor.
func openFiles() func(yield func(int, map[string]string) bool) {
	return func(yield func(int, map[string]string) bool) {
		processes, err := os.ReadDir("/proc")
		if err != nil {
			return
		}
		for _, process := range processes {
			pid, err := strconv.Atoi(process.Name())
			if err != nil {
				continue
			}
			dir := filepath.Join("/proc", process.Name(), "fd")
			descriptors, err := os.ReadDir(dir)
			if err != nil {
				continue
			}
			names := make(map[string]string)
			for _, descriptor := range descriptors {
				if name, err := os.Readlink(filepath.Join(dir, descriptor.Name())); err == nil {
					names[descriptor.Name()] = name
				}
			}
			if len(names) > 0 && !yield(pid, names) {
				return
			}
		}
	}
}

// describe names a process, and says whether it is stopped.
func describe(pid int) string {
	name := "process " + strconv.Itoa(pid)
	if pid == os.Getpid() {
		return "this process (" + strconv.Itoa(pid) + ")"
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return name
	}
	// 123 (name) T …
	open, end := strings.IndexByte(string(stat), '('), strings.LastIndexByte(string(stat), ')')
	if open < 0 || end < open || len(stat) < end+3 {
		return name
	}
	name += " (" + string(stat[open+1:end]) + ")"
	if state := stat[end+2]; state == 'T' || state == 't' {
		name += ", which is stopped (resume it with kill -CONT " + strconv.Itoa(pid) + ", or end it),"
	}
	return name
}
