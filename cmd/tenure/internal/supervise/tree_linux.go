package supervise

import (
	"bytes"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// adopt makes this process the new parent of every orphan among its descendants.
func adopt() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// attributes are those of the command: a process group of its own, and SIGKILL when the thread that starts it ends.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// killRest kills the children of this process and reports whether there were any alive. Only children are killed, not what they have
// started in turn: a child's number cannot be another's before this process has reaped it. Their own children become this process's
// when they die, so that some rounds of killing and reaping leave nobody.
func killRest(int) bool {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false
	}
	killed := false
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !isLiveChild(pid) {
			continue
		}
		if unix.Kill(pid, unix.SIGKILL) == nil {
			killed = true
		}
	}
	return killed
}

func isLiveChild(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// "pid (name) state ppid …", where the name may hold anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	return len(fields) > 1 && string(fields[0]) != "Z" && string(fields[1]) == strconv.Itoa(os.Getpid())
}

// groupGone is true: that no child is left says more.
func groupGone(int) bool { return true }

// blockTTOU blocks SIGTTOU in the calling thread.
func blockTTOU() {
	var set unix.Sigset_t
	set.Val[0] = 1 << (unix.SIGTTOU - 1)
	_ = unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil)
}

// executable is this process's own, also after the file was replaced by a newer one.
func executable() (string, error) { return "/proc/self/exe", nil }
