//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/glovebox-dev/glovebox/engine"
	"golang.org/x/sys/unix"
)

// wideTable is how many descriptors the table of a guest's processes has room for
// from their start, which is as many as that of the process that starts them. A
// table that grows while several threads use it makes the one that needs the
// room wait for all processors of the host, some 10 ms, and a sentry has some 200
// descriptors when its guest comes out of a snapshot with pandas.
const wideTable = 512

// spawner starts all processes of guests from one operating system thread that
// lives as long as the engine: the parent death signal, which makes guests die
// with the server, is sent when the thread that started them ends, and the Go
// runtime may end other threads.
type spawner struct {
	wide     int // a descriptor that makes this process's table wide; negative: none
	requests chan spawnRequest
	stop     chan struct{}
	done     chan struct{}
}

type spawnRequest struct {
	cmd   *exec.Cmd
	reply chan error
}

func newSpawner() *spawner {
	// Guests' processes must not inherit descriptors that this process was started
	// with. Best effort: kernels before 5.11 cannot.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	s := &spawner{
		wide:     openHigh(wideTable - 1),
		requests: make(chan spawnRequest),
		stop:     make(chan struct{}),
		done:     make(chan struct{}),
	}
	go s.run()
	return s
}

// openHigh opens a descriptor of at least the given number that is good for
// nothing else. Best effort: a limit may forbid it.
func openHigh(fd int) int {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return -1
	}
	defer null.Close()
	high, err := unix.FcntlInt(null.Fd(), unix.F_DUPFD_CLOEXEC, fd)
	if err != nil {
		return -1
	}
	return high
}

func (s *spawner) run() {
	defer close(s.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
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
	if s.wide >= 0 {
		unix.Close(s.wide)
	}
}
