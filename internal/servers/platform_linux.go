package servers

import (
	"bytes"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

const supported = true

// serverUser returns the user that servers run as when this process is root, as which PostgreSQL and PgBouncer refuse to run.
// nil: as the user of this process.
func serverUser() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, err
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func giveAway(path string) error {
	u, err := serverUser()
	if err != nil || u == nil {
		return err
	}
	return os.Chown(path, int(u.Uid), int(u.Gid))
}

func setUser(cmd *exec.Cmd) error {
	u, err := serverUser()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: u}
	return err
}

func setDeathSignal(cmd *exec.Cmd, sig syscall.Signal) { cmd.SysProcAttr.Pdeathsig = sig }

// DieWithParent makes the kernel send this process SIGTERM when its parent dies. The go command does not pass SIGTERM on to what
// go run started, so that programs would otherwise outlive it with all their servers.
func DieWithParent() error {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGTERM), 0); errno != 0 {
		return errno
	}
	return nil
}

// SignalTree sends a signal to a process and all its descendants. What of them is gone already is no error.
func SignalTree(pid int, sig syscall.Signal) {
	for _, p := range append(descendants(pid), pid) {
		_ = syscall.Kill(p, sig)
	}
}

// pauseTree stops the parent before its children, so that it starts no more of them.
func pauseTree(pid int) {
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	SignalTree(pid, syscall.SIGSTOP)
}

func resumeTree(pid int) { SignalTree(pid, syscall.SIGCONT) }

func killTree(pid int) {
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	SignalTree(pid, syscall.SIGKILL)
}

// descendants returns the children of a process, their children, and so on. That a process of a server makes itself the leader of
// a group of its own, as those of PostgreSQL do, does not hide it.
func descendants(pid int) []int {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil // only a malformed pattern does that
	}
	children := map[int][]int{}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it ended since
		}
		child, errChild := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		// pid (name) state parent ...: a name may hold blanks and brackets.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if errChild != nil || len(fields) < 2 {
			continue
		}
		if parent, err := strconv.Atoi(string(fields[1])); err == nil {
			children[parent] = append(children[parent], child)
		}
	}
	var all []int
	for queue := children[pid]; len(queue) > 0; queue = queue[1:] {
		all = append(all, queue[0])
		queue = append(queue, children[queue[0]]...)
	}
	return all
}
