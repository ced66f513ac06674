//go:build linux

package microsandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/engine/guests"
	"github.com/glovebox-dev/glovebox/internal/engine/remote"
	"github.com/glovebox-dev/glovebox/internal/guest/pod"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// removeFor bounds the attempts to remove a sandbox. After that it is left to a sweep.
	removeFor = 5 * time.Minute
	// maxBackoff bounds the time between two attempts.
	maxBackoff = 5 * time.Second
	// attemptTimeout bounds one attempt at a further connection, which takes seconds where the
	// processor is emulated.
	attemptTimeout = time.Minute
)

// guest is a microVM with an agent in it, as held by one Engine until it has ended or is
// detached.
type guest struct {
	e       *Engine
	id      string
	name    string // of the sandbox
	release func() // frees the id; may be repeated

	end     *guests.End
	pausing chan struct{} // holds an element while a Pause or Resume is in progress
	dialer  *remote.Dialer
	// These channels are closed with mu held.
	detached    chan struct{} // closed by Detach
	terminating chan struct{} // closed when the guest shall end

	mu sync.Mutex
}

var _ engine.Guest = (*guest)(nil)

func (e *Engine) newGuest(id, name string, release func()) *guest {
	g := &guest{
		e: e, id: id, name: name, release: release, end: guests.NewEnd(),
		pausing: make(chan struct{}, 1), detached: make(chan struct{}), terminating: make(chan struct{}),
	}
	g.dialer = remote.NewDialer(g.lost)
	return g
}

// dir is the directory of the guest's files on the host.
func (g *guest) dir() string { return guestDir(g.e.dir, g.name) }

// share is the directory that the guest sees.
func (g *guest) share() string { return filepath.Join(g.dir(), shareName) }

// stage copies the agent and the helper to where the guest sees them: the caller may
// remove or change its files while the guest lives.
func (g *guest) stage(agent string) error {
	if err := makeGuestDir(g.e.dir, g.name, g.e.holder.name, g.id); err != nil {
		return err
	}
	staged := filepath.Join(g.share(), agentName)
	if err := copyProgram(staged, agent); err != nil {
		return err
	}
	helper := filepath.Join(g.share(), pod.Name)
	if agent == g.e.helper {
		return os.Link(staged, helper)
	}
	return copyProgram(helper, g.e.helper)
}

// copyProgram copies an executable.
func copyProgram(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("open program: %w: %w", err, engine.ErrInvalid)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if hostdisk.IsFull(err) {
		err = fmt.Errorf("%w: %w", err, engine.ErrExhausted)
	}
	return err
}

func (g *guest) removeDir() {
	if err := os.RemoveAll(g.dir()); err != nil {
		g.e.log.Error("files of guest not removed", logkey.Guest, g.id, logkey.Error, err)
	}
}

// exec returns the arguments of msb that run a part of the helper in the guest, as its
// root. An element that begins with "--" is an option of msb.
func (g *guest) exec(part ...string) []string {
	args := []string{"exec", "--quiet", "--user=0"}
	for len(part) > 0 && len(part[0]) > 2 && part[0][:2] == "--" {
		args, part = append(args, part[0]), part[1:]
	}
	return append(append(args, g.name, "--", helperArg), part...)
}

// start starts the agent in the microVM, in the background.
func (g *guest) start(ctx context.Context, s *engine.Spec) error {
	ctx, cancel := context.WithTimeoutCause(ctx, commandWait, errSlow)
	defer cancel()
	part := append([]string{"start", cmp.Or(s.Hostname, g.id), agentArg}, s.Agent.Args...)
	_, err := g.e.msb.run(ctx, nil, g.exec(part...)...)
	return unavailable(err)
}

// run waits for the end of the agent, for Destroy or Detach. Unless the guest is detached,
// it removes the microVM and publishes why the guest has ended.
func (g *guest) run() {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-g.terminating:
		case <-g.detached:
		case <-ctx.Done():
		}
		cancel()
	}()
	exit, ended := g.await(ctx)
	cancel()
	if guests.Closed(g.detached) {
		return
	}
	if !ended || !g.terminate() {
		exit = engine.Exit{Reason: engine.ExitDestroyed}
	}
	g.remove()
	g.release()
	g.end.Reach(exit)
	// The stream ends last: callers whose calls fail ask at once why the guest ended.
	g.dialer.HangUp()
}

func (g *guest) status(ctx context.Context) (sandbox, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, commandWait, errSlow)
	defer cancel()
	out, err := g.e.msb.run(ctx, nil, "status", "--format", "json", g.name)
	if err != nil {
		return sandbox{}, err
	}
	return parseStatus(out, g.name)
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

// terminate makes the guest end, and reports whether it was to live until then.
func (g *guest) terminate() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if guests.Closed(g.terminating) {
		return false
	}
	close(g.terminating)
	return true
}

// lost returns ErrGone if the guest has ended or was detached.
func (g *guest) lost() error {
	switch {
	case guests.Closed(g.detached):
		return fmt.Errorf("detached: %w", engine.ErrGone)
	case guests.Closed(g.terminating):
		return engine.ErrGone
	}
	return nil
}

// ID returns the id passed to Create.
func (g *guest) ID() string { return g.id }

// Dial opens the stream to the agent. See engine.Guest.
func (g *guest) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	s, err := g.dialer.Dial(ctx, []<-chan struct{}{g.terminating, g.detached}, func(ctx context.Context) (*remote.Stream, error) {
		s, err := remote.Open(ctx, g.route())
		if err != nil && ctx.Err() == nil {
			err = g.failedDial(ctx, err)
		}
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("dial guest %q: %w", g.id, err)
	}
	return s, nil
}

// route leads to the helper in the microVM. A command of msb that carries a stream can end
// while the guest lives, as when its output is read too slowly. The window of the session is
// less than what msb holds, so that this is rare.
func (g *guest) route() remote.Route {
	return remote.Route{Connect: g.connect, Lost: g.lost, AttemptTimeout: attemptTimeout, Log: g.e.log.With(logkey.Guest, g.id)}
}

// connect runs the helper in the microVM.
func (g *guest) connect(ctx context.Context, again bool) (io.ReadWriteCloser, error) {
	if again { // a command for a guest that has stopped would boot it
		switch s, err := g.status(ctx); {
		case err != nil:
			return nil, err
		case s.Status == paused:
			return nil, remote.ErrPaused
		case s.Status != running:
			return nil, errors.New("the microVM does not run")
		}
	}
	msb := g.e.msb
	s, err := msb.stream(msb.command(context.Background(), g.exec("--stream", "link")...), func(words string) {
		g.e.log.Debug("a connection to a guest has ended", logkey.Guest, g.id, logkey.Detail, words)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// failedDial returns ErrGone if a guest cannot be dialled because it has ended, which await
// tells a moment later.
func (g *guest) failedDial(ctx context.Context, err error) error {
	s, serr := g.status(ctx)
	switch {
	case g.lost() != nil:
		return g.lost()
	case says(serr, notFound), serr == nil && !s.lives():
		return engine.ErrGone
	}
	// The helper ends with the agent.
	select {
	case <-g.terminating:
		return engine.ErrGone
	case <-time.After(endWait):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: %w", err, engine.ErrUnavailable)
}

// endWait bounds the time from the end of an agent until the engine knows of it.
const endWait = 5 * time.Second

// Wait blocks until the guest has ended. See engine.Guest.
func (g *guest) Wait(ctx context.Context) (engine.Exit, error) {
	return remote.Wait(ctx, g.id, g.end, g.detached, g.lost)
}

// Destroy ends the guest. See engine.Guest.
func (g *guest) Destroy(ctx context.Context) error {
	g.mu.Lock()
	gone := guests.Closed(g.detached)
	if !gone && !guests.Closed(g.terminating) {
		close(g.terminating)
	}
	g.mu.Unlock()
	var err error
	if gone {
		err = g.lost()
	} else {
		_, err = g.end.Wait(ctx)
	}
	if err != nil {
		return fmt.Errorf("destroy guest %q: %w", g.id, err)
	}
	return nil
}
