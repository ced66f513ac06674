//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"math"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/glovebox-dev/glovebox/engine"
	"golang.org/x/sys/unix"
)

// timerSlack is by how much the timed waits of a guest's processes may be late,
// in nanoseconds. The Go runtime of a sentry has a thread that looks every 20
// microseconds whether a system call takes long, as long as anything runs: with
// the 50 microseconds that Linux grants, that takes more processor time than the
// system calls of a short run. A guest's sleeps become late by as little.
const timerSlack = 200_000

// spawner starts all processes of guests from one operating system thread that
// lives as long as the engine: the parent death signal, which makes guests die
// with the server, is sent when the thread that started them ends, and the Go
// runtime may end other threads.
type spawner struct {
	requests chan spawnRequest
	stop     chan struct{}
	done     chan struct{}
}

type spawnRequest struct {
	cmd   *exec.Cmd
	reply chan error
}

func newSpawner() *spawner {
	// What this process was started with beyond its standard streams is not for
	// guests' processes. Best effort: kernels before 5.11 cannot.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	s := &spawner{
		requests: make(chan spawnRequest),
		stop:     make(chan struct{}),
		done:     make(chan struct{}),
	}
	go s.run()
	return s
}

func (s *spawner) run() {
	defer close(s.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Children inherit it from the thread that starts them.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, timerSlack, 0, 0, 0) // any kernel can
	defer unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0)        // as it was
	for {
		select {
		case r := <-s.requests:
			r.reply <- r.cmd.Start()
		case <-s.stop:
			return
		}
	}
}

// start starts cmd in new namespaces of its own, to be killed when this process
// ends.
func (s *spawner) start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	cmd.SysProcAttr.Setsid = true // signals of the server's terminal are not for guests
	cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	r := spawnRequest{cmd: cmd, reply: make(chan error, 1)}
	select {
	case s.requests <- r:
		return <-r.reply
	case <-s.done:
		return fmt.Errorf("engine closed: %w", engine.ErrGone)
	}
}

// close ends the thread. No guest may be left.
func (s *spawner) close() {
	close(s.stop)
	<-s.done
}
