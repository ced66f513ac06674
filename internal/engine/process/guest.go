//go:build linux

package process

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/guests"
	"github.com/glovebox-dev/glovebox/internal/engine/stdiolink"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// watchEvery is the interval in which the memory of a limited guest is measured:
// short enough that a hog cannot allocate more than a few hundred MiB in between.
const watchEvery = 50 * time.Millisecond

// guest is a running agent and its descendants.
type guest struct {
	id     string
	home   string
	temp   string // for its temporary files
	family family
	stream *stdiolink.Stream
	stderr *os.File // without a name
	cmd    *exec.Cmd
	memory uint64 // limit in bytes; 0: none
	log    *slog.Logger

	freezing sync.Mutex    // held by freeze
	agent    chan struct{} // closed when the agent has been reaped
	end      *guests.End   // reached when nothing is left

	mu     sync.Mutex
	exit   engine.Exit // guarded by mu; the first recorded reason wins
	holder *handle     // guarded by mu; nil while detached
}

// start starts the agent. The caller sets the holder and calls run, which ends when
// the guest does.
func start(id, home string, spec *engine.Spec, log *slog.Logger) (_ *guest, err error) {
	var undo []func()
	defer func() {
		for i := len(undo) - 1; err != nil && i >= 0; i-- {
			undo[i]()
		}
	}()
	if err := os.Mkdir(home, 0o755); err != nil {
		return nil, fmt.Errorf("make home: %w", err)
	}
	undo = append(undo, func() { removeTree(home) })
	// Paths of sockets are short, so it is not below home.
	temp, err := os.MkdirTemp("", "glovebox-guest-")
	if err != nil {
		return nil, fmt.Errorf("make directory for temporary files: %w", err)
	}
	undo = append(undo, func() { removeTree(temp) })
	if err := os.Chmod(temp, 0o777|os.ModeSticky); err != nil { // the agent's programs have another user
		return nil, fmt.Errorf("make directory for temporary files: %w", err)
	}
	stderr, err := unnamedFile(filepath.Dir(home))
	if err != nil {
		return nil, fmt.Errorf("create file for the agent's standard error: %w", err)
	}
	undo = append(undo, func() { stderr.Close() })
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w: %w", err, engine.ErrExhausted)
	}
	defer inR.Close()
	undo = append(undo, func() { inW.Close() })
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w: %w", err, engine.ErrExhausted)
	}
	defer outW.Close()
	undo = append(undo, func() { outR.Close() })

	g := &guest{
		id: id, home: home, temp: temp, stderr: stderr, log: log,
		memory: uint64(spec.Limits.MemoryMB) << 20,
		agent:  make(chan struct{}),
		end:    guests.NewEnd(),
		cmd: &exec.Cmd{
			Path:   spec.Agent.Path,
			Args:   spec.Agent.Args,
			Dir:    home,
			Env:    []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + home, "TMPDIR=" + temp},
			Stdin:  inR,
			Stdout: outW,
			Stderr: stderr,
			// The agent dies with this process. A session of its own keeps it from the
			// signals of the terminal.
			SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Ptrace: true},
		},
	}
	if err := g.launch(); err != nil {
		return nil, fmt.Errorf("start agent: %w", err)
	}
	g.stream = stdiolink.New(outR, inW)
	living.Lock()
	living.guests[home] = g
	living.Unlock()
	return g, nil
}

// launch starts the agent's process and the goroutine that waits for it. That
// goroutine keeps its thread: the thread that started a process is its tracer,
// and its death is what makes the kernel send the parent death signal.
func (g *guest) launch() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := g.cmd.Start()
		if err == nil {
			// It is traced and stopped, so it has no children yet.
			if g.family, err = newFamily(g.cmd.Process.Pid); err != nil {
				g.cmd.Process.Kill()
				g.cmd.Wait()
			}
		}
		started <- startError(err)
		if err == nil {
			g.cmd.Wait() // the result is in ProcessState
			close(g.agent)
		}
	}()
	return <-started
}

// startError maps an error of the start of the agent to those of the contract.
func startError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ENOEXEC):
		return fmt.Errorf("%w: %w", err, engine.ErrInvalid)
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return fmt.Errorf("%w: %w", err, engine.ErrExhausted)
	}
	return err
}

// run waits for the end of the agent, kills the other processes of the guest and
// frees its resources.
func (g *guest) run() {
	if g.memory > 0 {
		g.watch()
	}
	<-g.agent
	g.family.kill(g.cmd.Process.Pid)
	g.stream.Close() // an error of closing a pipe has no remedy
	g.setExit(g.agentExit())
	g.log.Debug("agent ended", logkey.Guest, g.id, logkey.Error, g.lastWords())
	g.stderr.Close()
	for _, dir := range []string{g.home, g.temp} {
		if err := removeTree(dir); err != nil {
			g.log.Error("directory of guest not removed", logkey.Guest, g.id, logkey.Error, err)
		}
	}
	living.Lock()
	delete(living.guests, g.home)
	living.Unlock()
	g.mu.Lock()
	exit, holder := g.exit, g.holder
	g.mu.Unlock()
	if holder != nil {
		holder.release()
	}
	g.end.Reach(exit)
}

// watch kills the guest when it exceeds its memory limit. It returns when the
// agent has ended.
func (g *guest) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-g.agent:
			return
		case <-tick.C:
		}
		if s := g.family.stats(); s.MemoryBytes > g.memory {
			g.setExit(engine.Exit{
				Reason: engine.ExitOOM,
				Detail: fmt.Sprintf("%d MiB used, %d allowed", s.MemoryBytes>>20, g.memory>>20),
			})
			g.family.kill(g.cmd.Process.Pid)
		}
	}
}

// setExit records why the guest ends, unless a reason is recorded already.
func (g *guest) setExit(why engine.Exit) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.exit.Reason == "" {
		g.exit = why
	}
}

// agentExit returns the agent's exit code as a shell would.
func (g *guest) agentExit() engine.Exit {
	exit := engine.Exit{Reason: engine.ExitExited, Code: g.cmd.ProcessState.ExitCode(), Detail: g.cmd.ProcessState.String()}
	if s, ok := g.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		exit.Code = 128 + int(s.Signal())
	}
	return exit
}

// lastWords returns the end of the agent's standard error.
func (g *guest) lastWords() string {
	const most = 2048
	size, err := g.stderr.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	b := make([]byte, most)
	n, _ := g.stderr.ReadAt(b, max(0, size-most)) // io.EOF at the least
	return strings.TrimSpace(string(b[:n]))
}

// ID is the id that Create was given.
func (g *guest) ID() string { return g.id }

func (g *guest) agentEnded() bool {
	select {
	case <-g.agent:
		return true
	default:
		return false
	}
}

// dial opens the stream to the agent.
func (g *guest) dial(ctx context.Context) (io.ReadWriteCloser, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if g.agentEnded() {
		return nil, engine.ErrGone
	}
	conn, err := g.stream.Dial()
	if errors.Is(err, os.ErrClosed) {
		err = engine.ErrGone
	}
	return conn, err
}

// destroy ends the guest and returns when nothing is left.
func (g *guest) destroy(ctx context.Context) error {
	if !g.agentEnded() {
		g.setExit(engine.Exit{Reason: engine.ExitDestroyed})
		g.cmd.Process.Kill() // fails if it has just ended
	}
	_, err := g.end.Wait(ctx)
	return err
}

// freeze sends SIGSTOP or SIGCONT to all processes of the guest.
func (g *guest) freeze(ctx context.Context, sig syscall.Signal) error {
	g.freezing.Lock()
	defer g.freezing.Unlock()
	// Two scans without a change in a row: one scan may miss a process that starts
	// during it.
	for seen := 0; seen < 2; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if g.agentEnded() {
			return engine.ErrGone
		}
		seen++
		if !g.family.signal(sig) {
			seen = 0
		}
	}
	return nil
}

// unnamedFile returns a file that is freed with its last descriptor.
func unnamedFile(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "stderr-")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

// removeTree removes dir even if the guest has removed its owner's permissions.
func removeTree(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(name, 0o700) // RemoveAll reports what this does not help
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// newMark returns a random number that no other process has as its limit.
func newMark() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])>>2 | 1<<40
}
