package sqlite

import (
	"os"

	"golang.org/x/sys/unix"
)

// A watch hears from the kernel when the file or one that belongs to it is deleted or moved, and when somebody writes the log.
type watch struct {
	stirred chan struct{} // buffer of one
	file    *os.File
	stopped chan struct{}
}

func newWatch(path string, writes bool) (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	w := &watch{stirred: make(chan struct{}, 1), file: os.NewFile(uintptr(fd), "inotify"), stopped: make(chan struct{})}
	for _, suffix := range suffixes {
		mask := uint32(unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF)
		if writes && suffix == "-wal" {
			mask |= unix.IN_MODIFY
		}
		if _, err := unix.InotifyAddWatch(fd, path+suffix, mask); err != nil {
			w.file.Close()
			return nil, os.NewSyscallError("inotify_add_watch", err)
		}
	}
	go w.listen()
	return w, nil
}

func (w *watch) listen() {
	defer close(w.stopped)
	// Which events they are does not matter, and that some were dropped is told by one more.
	events := make([]byte, 64*unix.SizeofInotifyEvent)
	for {
		if _, err := w.file.Read(events); err != nil {
			return
		}
		select {
		case w.stirred <- struct{}{}:
		default:
		}
	}
}

func (w *watch) close() {
	w.file.Close()
	<-w.stopped
}
