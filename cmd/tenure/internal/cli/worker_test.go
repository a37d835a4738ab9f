//go:build unix

package cli

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

func init() { worker = runWorker }

// runWorker is the command that the tests run under tenure run. It holds a file lock, which the kernel frees when the worker and all that it has
// started are dead, and reports to a log when somebody else holds it: then two leaders' work overlaps.
func runWorker() {
	flags := flag.NewFlagSet("worker", flag.ExitOnError)
	stubborn := flags.Bool("stubborn", false, "ignore signals that ask for the end")
	child := flags.Bool("child", false, "start a stubborn process in a session of its own, which inherits the lock")
	exit := flags.Int("exit", -1, "exit with this code at once")
	_ = flags.Parse(os.Args[1:]) // exits when it fails
	log := func(event string) {
		f, err := os.OpenFile("log", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			panic(err)
		}
		defer f.Close()
		fmt.Fprintln(f, event, os.Getenv("TENURE_MEMBER"), os.Getenv("TENURE_TOKEN"), os.Getpid())
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	lock, err := os.OpenFile("lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		panic(err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		log("OVERLAP")
	}
	if *child {
		c := exec.Command("sh", "-c", `trap "" TERM INT HUP QUIT; while :; do sleep 1; done`)
		c.ExtraFiles = []*os.File{lock}
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := c.Start(); err != nil {
			panic(err)
		}
	}
	log("start")
	if *exit >= 0 {
		os.Exit(*exit)
	}
	for sig := range signals {
		s := sig.(syscall.Signal)
		log(fmt.Sprintf("signal-%d", int(s)))
		if s == syscall.SIGTERM && !*stubborn {
			time.Sleep(20 * time.Millisecond) // to put something in order
			log("end")
			os.Exit(20)
		}
	}
}
