//go:build linux

package microsandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/guests"
	"github.com/glovebox-dev/glovebox/internal/engine/stdiolink"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/truncate"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

const (
	// removeFor bounds the attempts to remove a sandbox. After that it is left to a sweep.
	removeFor = 5 * time.Minute
	// maxBackoff bounds the time between two attempts.
	maxBackoff = 5 * time.Second
)

// guest is a microVM with an agent in it.
type guest struct {
	e       *Engine
	id      string
	name    string // of the sandbox
	release func() // frees the id; may be repeated

	cmd    *exec.Cmd // the msb that runs the agent
	stream *stdiolink.Stream
	stderr *tail // of the agent and of that msb

	client  chan struct{} // closed when that msb has ended
	end     *guests.End
	pausing chan struct{} // holds an element while a Pause or Resume is in progress

	mu     sync.Mutex
	doomed chan struct{} // closed with mu held, when the guest shall end
}

var _ engine.Guest = (*guest)(nil)

// dir is the directory of the guest's files on the host.
func (g *guest) dir() string { return guestDir(g.e.dir, g.name) }

func guestDir(dir, name string) string { return filepath.Join(dir, name) }

// stage copies the agent to where the guest sees it: the caller may remove or change its
// file while the guest lives.
func (g *guest) stage(agent string) error {
	if err := os.Mkdir(g.dir(), 0o755); err != nil {
		return err
	}
	in, err := os.Open(agent)
	if err != nil {
		return fmt.Errorf("open agent: %w: %w", err, engine.ErrInvalid)
	}
	defer in.Close()
	out, err := os.OpenFile(filepath.Join(g.dir(), "agent"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		err = fmt.Errorf("%w: %w", err, engine.ErrExhausted)
	}
	return err
}

func (g *guest) removeDir() {
	if err := os.RemoveAll(g.dir()); err != nil {
		g.e.log.Error("files of guest not removed", logkey.Guest, g.id, logkey.Error, err)
	}
}

// start runs the agent.
func (g *guest) start(argv []string) error {
	inR, inW, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w: %w", err, engine.ErrExhausted)
	}
	defer inR.Close()
	outR, outW, err := os.Pipe()
	if err != nil {
		inW.Close()
		return fmt.Errorf("make pipe: %w: %w", err, engine.ErrExhausted)
	}
	defer outW.Close()
	g.stderr = new(tail)
	// msb cannot set the agent's own name, the first argument.
	args := append([]string{"exec", "--quiet", "--stream", "--user=0", g.name, "--", agentArg}, argv[1:]...)
	g.cmd = g.e.msb.command(context.Background(), args...)
	g.cmd.Stdin, g.cmd.Stdout, g.cmd.Stderr = inR, outW, g.stderr
	if err := g.cmd.Start(); err != nil {
		inW.Close()
		outR.Close()
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM) {
			err = fmt.Errorf("%w: %w", err, engine.ErrExhausted)
		}
		return fmt.Errorf("start the agent: %w", err)
	}
	g.stream = stdiolink.New(outR, inW)
	return nil
}

// run waits for the end of the agent or for Destroy, removes the microVM and publishes why
// the guest has ended.
func (g *guest) run() {
	go func() {
		g.cmd.Wait() // the result is in ProcessState
		close(g.client)
	}()
	g.e.workers.Go(g.watch)
	exit := engine.Exit{Reason: engine.ExitDestroyed}
	select {
	case <-g.client:
		exit = g.reason()
	case <-g.doomed:
	}
	g.doom() // Dial fails from now on
	g.kill()
	<-g.client
	g.remove()
	g.release()
	g.end.Reach(exit)
	// The stream ends last: callers whose calls fail ask at once why the guest ended.
	g.stream.Close() // an error of closing a pipe has no remedy
}

// reason finds out why the agent's msb has ended.
func (g *guest) reason() engine.Exit {
	if isClosed(g.doomed) {
		return engine.Exit{Reason: engine.ExitDestroyed}
	}
	words := g.stderr.last()
	g.e.log.Debug("the agent has ended", logkey.Guest, g.id, logkey.Detail, words)
	s, err := g.status()
	switch {
	case err != nil:
		return engine.Exit{Reason: engine.ExitCrashed, Detail: "the virtual machine has no status: " + visible.Line(err.Error())}
	case !s.lives():
		return engine.Exit{Reason: engine.ExitCrashed, Detail: "the virtual machine has ended: its status is " + truncate.Bytes(visible.Line(s.Status), 40)}
	}
	return exitOf(g.cmd.ProcessState, words)
}

// signalled is msb's exit code for every signal that ended the agent.
const signalled = 255

// exitOf tells the exit of the agent from that of the msb that ran it, which has the same
// code. words are the last line of their standard error, printable.
func exitOf(state *os.ProcessState, words string) engine.Exit {
	code := state.ExitCode()
	switch {
	case code < 0:
		return engine.Exit{Reason: engine.ExitCrashed, Detail: "msb was killed: " + state.String()}
	case code == 1 && strings.HasPrefix(words, "error: "): // msb's own failures
		return engine.Exit{Reason: engine.ExitCrashed, Detail: "msb failed: " + strings.TrimPrefix(words, "error: ")}
	}
	if code == signalled {
		return engine.Exit{Reason: engine.ExitCrashed, Detail: "a signal has ended the agent; msb does not tell which"}
	}
	return engine.Exit{Reason: engine.ExitExited, Code: code}
}

func (g *guest) status() (sandbox, error) {
	out, err := g.e.msb.brief("status", "--format", "json", g.name)
	if err != nil {
		return sandbox{}, err
	}
	return parseStatus(out, g.name)
}

// kill kills the agent's msb with what it has started.
func (g *guest) kill() {
	if !isClosed(g.client) {
		syscall.Kill(-g.cmd.Process.Pid, syscall.SIGKILL) // fails if it has just ended
	}
}

// remove removes the microVM and the files of the guest. A msb that does not answer cannot
// hold up the end of the guest for ever: what is left then is removed by a sweep.
func (g *guest) remove() {
	began := time.Now()
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, maxBackoff) {
		err := g.e.removeSandbox(g.name)
		if err == nil {
			g.removeDir()
			return
		}
		if time.Since(began) > removeFor {
			g.e.log.Error("a microVM is left behind; a later start of this program removes it", logkey.Guest, g.id, logkey.Name, g.name, logkey.Error, err)
			return
		}
		g.e.log.Warn("cannot remove a microVM; trying again", logkey.Guest, g.id, logkey.Retry, wait, logkey.Error, err)
		time.Sleep(wait)
	}
}

// removeSandbox ends and removes a sandbox. Removing one that does not exist does nothing.
func (e *Engine) removeSandbox(name string) error {
	_, err := e.msb.brief("remove", "--force", name) // with --quiet it does not say why it fails
	if says(err, notFound) {
		return nil
	}
	return err
}

// isClosed reports whether c is closed. Nothing is sent to it.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// doom makes the guest end.
func (g *guest) doom() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !isClosed(g.doomed) {
		close(g.doomed)
	}
}

// ID returns the id passed to Create.
func (g *guest) ID() string { return g.id }

// Dial opens the stream to the agent. See engine.Guest.
func (g *guest) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	err := context.Cause(ctx)
	var conn io.ReadWriteCloser
	if err == nil && (isClosed(g.doomed) || isClosed(g.client)) {
		err = engine.ErrGone
	}
	if err == nil {
		conn, err = g.stream.Dial()
	}
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
	exit, err := g.end.Wait(ctx)
	if err != nil {
		return exit, fmt.Errorf("wait for guest %q: %w", g.id, err)
	}
	return exit, nil
}

// Destroy ends the guest. See engine.Guest.
func (g *guest) Destroy(ctx context.Context) error {
	g.doom()
	if _, err := g.end.Wait(ctx); err != nil {
		return fmt.Errorf("destroy guest %q: %w", g.id, err)
	}
	return nil
}

// maxTail bounds what is kept of a guest's standard error.
const maxTail = 4 << 10

// tail keeps the last bytes that are written.
type tail struct {
	mu sync.Mutex
	b  []byte // guarded by mu
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p[max(0, len(p)-maxTail):]...)
	if more := len(t.b) - maxTail; more > 0 {
		t.b = append(t.b[:0], t.b[more:]...)
	}
	return len(p), nil
}

// last returns the last line that begins with "error: ", or else the last line, printable
// and of maxDetail bytes at most.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.b)), "\n")
	line := lines[len(lines)-1]
	for i := len(lines) - 1; i >= 0; i-- {
		if strings.HasPrefix(lines[i], "error: ") {
			line = lines[i]
			break
		}
	}
	return truncate.Bytes(visible.Line(line), maxDetail)
}
