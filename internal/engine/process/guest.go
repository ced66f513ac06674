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
	"github.com/glovebox-dev/glovebox/internal/engine/stdiolink"
)

// watchEvery is how often the memory of a limited guest is looked at: often
// enough that a hog cannot take more than a few hundred MiB in between.
const watchEvery = 50 * time.Millisecond

// guest is a running agent and all that descends from it.
type guest struct {
	id     string
	home   string
	family family
	stream *stdiolink.Stream
	stderr *os.File // without a name
	cmd    *exec.Cmd
	memory uint64 // limit in bytes; 0: none
	log    *slog.Logger

	freezing sync.Mutex    // held by Pause and Resume
	agent    chan struct{} // closed when the agent has been waited for
	done     chan struct{} // closed when everything is gone; exit is valid then

	mu   sync.Mutex
	exit engine.Exit // guarded by mu until done; why the guest ends; first come, first served
}

var (
	_ engine.Guest   = (*guest)(nil)
	_ engine.Pauser  = (*guest)(nil)
	_ engine.Statser = (*guest)(nil)
)

// start starts the agent. The caller calls run, which ends when the guest does.
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
	stderr, err := unnamedFile(filepath.Dir(home))
	if err != nil {
		return nil, fmt.Errorf("make file for the agent's messages: %w", err)
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
		id: id, home: home, stderr: stderr, log: log,
		memory: uint64(spec.Limits.MemoryMB) << 20,
		agent:  make(chan struct{}),
		done:   make(chan struct{}),
		cmd: &exec.Cmd{
			Path:   spec.Agent.Path,
			Args:   spec.Agent.Args,
			Dir:    home,
			Env:    []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + home},
			Stdin:  inR,
			Stdout: outW,
			Stderr: stderr,
			// The agent dies with this process; signals of its terminal are not for
			// guests.
			SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Ptrace: true},
		},
	}
	if err := g.launch(); err != nil {
		return nil, fmt.Errorf("start agent: %w", err)
	}
	g.stream = stdiolink.New(outR, inW)
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
			// Traced, so that it has not run yet and cannot have children.
			if g.family, err = found(g.cmd.Process.Pid); err != nil {
				g.cmd.Process.Kill()
				g.cmd.Wait()
			}
		}
		started <- startError(err)
		if err == nil {
			g.cmd.Wait() // what it says is in ProcessState
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

// run waits for the end of the agent, ends all that is left of the guest and
// frees what it holds.
func (g *guest) run(release func()) {
	if g.memory > 0 {
		g.watch()
	}
	<-g.agent
	g.family.kill(g.cmd.Process.Pid)
	g.stream.Close() // nothing can be done about an error of closing a pipe
	g.end(g.agentExit())
	g.log.Debug("agent ended", "sandbox", g.id, "err", g.lastWords())
	g.stderr.Close()
	if err := removeTree(g.home); err != nil {
		g.log.Error("home of guest is left", "sandbox", g.id, "err", err)
	}
	release()
	close(g.done)
}

// watch ends the guest if it takes more memory than it may. It returns when the
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
			g.end(engine.Exit{
				Reason: engine.ExitOOM,
				Detail: fmt.Sprintf("%d MiB used, %d allowed", s.MemoryBytes>>20, g.memory>>20),
			})
			g.family.kill(g.cmd.Process.Pid)
		}
	}
}

// end records why the guest ends, unless that is known already.
func (g *guest) end(why engine.Exit) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.exit.Reason == "" {
		g.exit = why
	}
}

// agentExit says how the agent ended, as a shell would.
func (g *guest) agentExit() engine.Exit {
	exit := engine.Exit{Reason: engine.ExitExited, Code: g.cmd.ProcessState.ExitCode(), Detail: g.cmd.ProcessState.String()}
	if s, ok := g.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		exit.Code = 128 + int(s.Signal())
	}
	return exit
}

// lastWords returns the end of what the agent wrote to its standard error.
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

// Dial opens the stream to the agent. See engine.Guest.
func (g *guest) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("dial guest %q: %w", g.id, err)
	}
	select {
	case <-g.agent:
		return nil, fmt.Errorf("dial guest %q: %w", g.id, engine.ErrGone)
	default:
	}
	conn, err := g.stream.Dial()
	if errors.Is(err, os.ErrClosed) {
		err = engine.ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("dial guest %q: %w", g.id, err)
	}
	return conn, nil
}

// Wait blocks until the guest has ended. See engine.Guest.
func (g *guest) Wait(ctx context.Context) (engine.Exit, error) {
	select {
	case <-g.done: // also if ctx has ended, too
		return g.exit, nil
	default:
	}
	select {
	case <-g.done:
		return g.exit, nil
	case <-ctx.Done():
		return engine.Exit{}, fmt.Errorf("wait for guest %q: %w", g.id, context.Cause(ctx))
	}
}

// Destroy ends the guest. See engine.Guest.
func (g *guest) Destroy(ctx context.Context) error {
	select {
	case <-g.agent: // it ends by itself, for its own reason
	default:
		g.end(engine.Exit{Reason: engine.ExitDestroyed})
		g.cmd.Process.Kill() // fails if it has just ended: fine
	}
	select {
	case <-g.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("destroy guest %q: %w", g.id, context.Cause(ctx))
	}
}

// Pause stops all processes of the guest. See engine.Pauser.
func (g *guest) Pause(ctx context.Context) error { return g.freeze(ctx, unix.SIGSTOP, "pause") }

// Resume lets them go on. See engine.Pauser.
func (g *guest) Resume(ctx context.Context) error { return g.freeze(ctx, unix.SIGCONT, "resume") }

func (g *guest) freeze(ctx context.Context, sig syscall.Signal, verb string) error {
	g.freezing.Lock()
	defer g.freezing.Unlock()
	// Twice, because a process that was started while the first look went on may
	// not have been seen.
	for seen := 0; seen < 2; {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("%s guest %q: %w", verb, g.id, err)
		}
		select {
		case <-g.agent:
			return fmt.Errorf("%s guest %q: %w", verb, g.id, engine.ErrGone)
		default:
		}
		seen++
		if !g.family.signal(sig) {
			seen = 0
		}
	}
	return nil
}

// Stats tells what the guest uses. See engine.Statser.
func (g *guest) Stats(ctx context.Context) (engine.Stats, error) {
	select {
	case <-g.agent:
		return engine.Stats{}, fmt.Errorf("stats of guest %q: %w", g.id, engine.ErrGone)
	default:
		return g.family.stats(), nil
	}
}

// unnamedFile returns a file that goes away with its last descriptor.
func unnamedFile(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "stderr-")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

// removeTree removes dir even if the guest has forbidden it to its owner.
func removeTree(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(name, 0o700) // what it does not help shows below
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
