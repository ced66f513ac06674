package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/kernel"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// killWait bounds the wait for a killed process; only one stuck in the guest's kernel
// needs longer.
const killWait = 10 * time.Second

// maxCommand bounds a command line in a list, which must fit a frame in any encoding.
const maxCommand = 256

// process is a running command.
type process struct {
	cmd     *exec.Cmd
	launch  *launcher
	command string
	started time.Time
	input   *os.File    // nil: none
	output  [2]*os.File // stdout, stderr
	killed  int         // orphans killed to start it

	done chan struct{} // closed when the main process has ended
	// Set before done is closed.
	state *os.ProcessState
	ended time.Time
}

// start starts the process and waits for its end in a goroutine.
func (p *process) start(stdin bool) (err error) {
	var theirs, ours []*os.File
	defer func() {
		closeFiles(theirs)
		if err != nil {
			closeFiles(ours)
		}
	}()
	pipe := func() (r, w *os.File) {
		if err == nil {
			r, w, err = os.Pipe()
		}
		return r, w
	}
	if stdin {
		r, w := pipe()
		theirs, ours = append(theirs, r), append(ours, w)
		p.cmd.Stdin, p.input = r, w
	}
	outR, outW := pipe()
	errR, errW := pipe()
	theirs, ours = append(theirs, outW, errW), append(ours, outR, errR)
	if err != nil {
		return err
	}
	if err := kernel.ChownPipes(p.cmd, theirs...); err != nil {
		return err
	}
	p.cmd.Stdout, p.cmd.Stderr = outW, errW
	p.output = [2]*os.File{outR, errR}
	p.started = time.Now()
	p.killed, err = p.launch.start(p.cmd)
	if err != nil {
		return err
	}
	go p.wait()
	return nil
}

func closeFiles(fs []*os.File) {
	for _, f := range fs {
		if f != nil {
			f.Close()
		}
	}
}

// wait reaps the process. It ends at the latest when shutdown kills it.
func (p *process) wait() {
	p.state, _ = p.cmd.Process.Wait()
	p.ended = time.Now()
	p.launch.ended(p.pid())
	close(p.done)
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// signal sends a signal to the process group.
func (p *process) signal(sig syscall.Signal) error {
	return unix.Kill(-p.pid(), sig)
}

// supervise waits for the main process, ends it when ctx is done or time is up, and
// returns the reason.
func (p *process) supervise(ctx context.Context, timeout, grace time.Duration) (stopped string) {
	var timer <-chan time.Time
	if timeout > 0 {
		t := time.NewTimer(timeout)
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-p.done:
		return ""
	case <-timer:
		stopped = "timeout"
	case <-ctx.Done():
		stopped = "cancelled"
	}
	p.signal(unix.SIGTERM)
	p.signal(unix.SIGCONT) // a stopped process does not handle TERM
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
	}
	// Other processes of the group may outlive its leader.
	p.signal(unix.SIGKILL)
	select {
	case <-p.done:
	case <-time.After(killWait):
	}
	return stopped
}

// expire makes the pumps of the output end soon, even if others hold the pipes open.
func (p *process) expire() {
	for _, r := range p.output {
		r.SetReadDeadline(time.Now().Add(pipeDelay))
	}
}

// describe sets how the process ended.
func (p *process) describe(res *protocol.ExecResult) {
	res.PID = p.pid()
	select {
	case <-p.done:
	default:
		res.Running = true
		res.Seconds = time.Since(p.started).Seconds()
		return
	}
	res.Seconds = p.ended.Sub(p.started).Seconds()
	ws, ok := syscall.WaitStatus(0), false
	if p.state != nil {
		ws, ok = p.state.Sys().(syscall.WaitStatus)
	}
	switch {
	case !ok:
		res.Code = 255
	case ws.Signaled():
		res.Code = 128 + int(ws.Signal())
		res.Signal = signalName(ws.Signal())
	default:
		res.Code = ws.ExitStatus()
	}
}

// pump copies output until the end of the pipe or its deadline, and then what the pipe
// still contains.
func pump(r *os.File, take func([]byte)) {
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			take(buf[:n])
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			drain(r, buf, take)
			return
		}
		if err != nil {
			return
		}
	}
}

// maxRest is the maximum content of a pipe.
const maxRest = 1 << 20

// drain reads the pipe's content without waiting for more.
func drain(r *os.File, buf []byte, take func([]byte)) {
	r.SetReadDeadline(time.Time{})
	rc, err := r.SyscallConn()
	if err != nil {
		return
	}
	for got := 0; got < maxRest; {
		var n int
		rc.Read(func(fd uintptr) bool {
			n, err = unix.Read(int(fd), buf)
			return true
		})
		if n <= 0 || err != nil {
			return
		}
		got += n
		take(buf[:n])
	}
}

// drainSet reads and discards the output of processes that outlive the command that
// started them, so that a background server does not die of SIGPIPE.
type drainSet struct {
	mu     sync.Mutex
	files  []*os.File // guarded by mu; the oldest first
	closed bool       // guarded by mu
	wg     sync.WaitGroup
}

// maxDrains bounds the drained pipes; beyond it, the oldest is closed.
const maxDrains = 128

// add starts to drain a pipe, unless it is at its end.
func (d *drainSet) add(r *os.File) {
	r.SetReadDeadline(time.Time{})
	if atEnd(r) {
		r.Close()
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		r.Close()
		return
	}
	d.files = append(d.files, r)
	if len(d.files) > maxDrains {
		d.files[0].Close()
		d.files = d.files[1:]
	}
	d.wg.Go(func() {
		io.Copy(io.Discard, r)
		r.Close()
		d.mu.Lock()
		defer d.mu.Unlock()
		for i, f := range d.files {
			if f == r {
				d.files = append(d.files[:i], d.files[i+1:]...)
				break
			}
		}
	})
}

// atEnd reports whether the pipe has no writers left.
func atEnd(r *os.File) bool {
	end := false
	rc, err := r.SyscallConn()
	if err != nil {
		return true
	}
	rc.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		end = err == nil && n == 1 && p[0].Revents&unix.POLLHUP != 0 && p[0].Revents&unix.POLLIN == 0
	})
	return end
}

func (d *drainSet) closeAll() {
	d.mu.Lock()
	d.closed = true
	closeFiles(d.files)
	d.mu.Unlock()
	d.wg.Wait()
}

var signals = map[string]syscall.Signal{
	"INT": unix.SIGINT, "TERM": unix.SIGTERM, "KILL": unix.SIGKILL, "HUP": unix.SIGHUP, "QUIT": unix.SIGQUIT,
	"USR1": unix.SIGUSR1, "USR2": unix.SIGUSR2, "STOP": unix.SIGSTOP, "CONT": unix.SIGCONT,
}

// signalName returns the name without SIG.
func signalName(s syscall.Signal) string {
	if n := unix.SignalName(s); len(n) > 3 {
		return n[3:]
	}
	return s.String()
}
