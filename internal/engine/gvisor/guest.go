//go:build linux && (amd64 || arm64)

package gvisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/guests"
	"github.com/glovebox-dev/glovebox/internal/engine/stdiolink"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// hangTimeout is how long a sentry may take to pause or resume its guest, and to
	// store one without memory. It is far more than a busy machine needs.
	hangTimeout = 2 * time.Minute
	// goferTimeout bounds the wait for a gofer that has lost its sentry.
	goferTimeout = time.Second
	// lastWordsTimeout bounds the wait for a failing process to report why.
	lastWordsTimeout = 200 * time.Millisecond
	// dyingTimeout bounds the wait for the exit status of a process that is about to
	// end by itself, on a busy machine.
	dyingTimeout = 5 * time.Second
)

// guest is a sentry and its file server: one or two gofers if it has volumes, else a
// rootServer, or none if its root is an image.
type guest struct {
	e       *Engine
	id      string
	tree    *tree
	limits  engine.Limits
	made    fixedSpec // recorded in snapshots
	renewed bool      // restored from a snapshot, so it has a second /proc
	disk    *os.File  // backs the writable layer
	quota   *quota    // of the disk
	socket  string
	link    *stdiolink.Stream
	stderr  *tail
	report  *report
	group   *cgroup // nil without cgroups
	user    user    // of the sentry

	sentry   *exec.Cmd
	root     *rootServer   // nil if there are gofers or the root is an image
	gofers   []*exec.Cmd   // none if there are no volumes; the first also serves the root, unless that is an image
	goferEnd chan struct{} // closed when all gofers have ended

	end *guests.End // reached when nothing is left on the host

	mu     sync.Mutex
	reason engine.ExitReason // guarded by mu; why it is being killed; the first reason wins
	detail string            // guarded by mu
	dead   bool              // guarded by mu; the sentry has been reaped: its pid may be reused

	pause  chan struct{} // a token: one Pause, Resume or Snapshot at a time
	paused bool          // guarded by the token
	cpus   []int         // guarded by the token; the processors that its programs are bound to, if any
	bound  bool          // guarded by the token; they count as taken
}

var _ engine.Guest = (*guest)(nil)

// ID returns the id passed to Create.
func (g *guest) ID() string { return g.id }

// Dial opens the stream to the agent.
func (g *guest) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	conn, err := g.link.Dial()
	if errors.Is(err, os.ErrClosed) {
		return nil, fmt.Errorf("dial guest %q: %w", g.id, engine.ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("dial guest %q: %w", g.id, err)
	}
	return conn, nil
}

// Wait blocks until the guest has ended and returns why.
func (g *guest) Wait(ctx context.Context) (engine.Exit, error) { return g.end.Wait(ctx) }

// Destroy ends the guest and returns when nothing of it is left.
func (g *guest) Destroy(ctx context.Context) error {
	g.kill(engine.ExitDestroyed, "")
	_, err := g.end.Wait(ctx)
	return err
}

// kill ends the sentry for the given reason, unless it is being killed already.
func (g *guest) kill(reason engine.ExitReason, detail string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reason == "" {
		g.reason, g.detail = reason, detail
	}
	if !g.dead {
		g.sentry.Process.Kill() // fails only if it has ended
	}
}

// adopt starts the goroutines that wait for the guest's processes, free everything
// and then call release.
func (g *guest) adopt(release func()) {
	g.pause = make(chan struct{}, 1)
	g.goferEnd = make(chan struct{})
	g.e.watch.add(g)
	g.e.disk.adopt(g.quota, g)
	var serving sync.WaitGroup
	for _, gofer := range g.gofers {
		serving.Go(func() {
			if err := gofer.Wait(); err != nil {
				// A guest without its files is useless. There is no error if the sentry
				// has asked the gofer to end.
				g.kill(engine.ExitCrashed, "gofer ended: "+clean(err.Error()))
			}
		})
	}
	go func() {
		serving.Wait()
		close(g.goferEnd)
	}()
	go func() {
		err := g.sentry.Wait()
		g.mu.Lock()
		g.dead = true
		g.mu.Unlock()
		g.e.watch.remove(g)
		g.endGofers()
		exit := g.classify(err)
		g.pause <- struct{}{} // no call to the sentry is in progress any more
		<-g.pause
		g.free()
		g.e.log.Debug("guest ended", logkey.Guest, g.id, logkey.Reason, exit.Reason, logkey.Code, exit.Code)
		release()
		g.end.Reach(exit)
	}()
}

// endGofers waits for the gofers, which end by themselves without a sentry. If the reason
// of the guest's end is known already, it kills them at once.
func (g *guest) endGofers() {
	g.mu.Lock()
	known := g.reason != ""
	g.mu.Unlock()
	if !known {
		select {
		case <-g.goferEnd:
			return
		case <-time.After(goferTimeout):
		}
	}
	for _, gofer := range g.gofers {
		gofer.Process.Kill() // fails only if it has ended
	}
	<-g.goferEnd
}

// classify returns why the sentry has ended. Its exit code is the agent's, unless it
// was killed or reported an error.
func (g *guest) classify(err error) engine.Exit {
	g.mu.Lock()
	reason, detail := g.reason, g.detail
	g.mu.Unlock()
	words := g.report.tail()
	var exit *exec.ExitError
	status := syscall.WaitStatus(0)
	if errors.As(err, &exit) {
		status, _ = exit.Sys().(syscall.WaitStatus)
	}
	switch {
	case reason == engine.ExitDestroyed && status.Signaled():
		return engine.Exit{Reason: reason}
	case reason == engine.ExitOOM || reason == engine.ExitCrashed || reason == engine.ExitDisk:
		return engine.Exit{Reason: reason, Detail: detail}
	case g.group.oomKilled():
		return engine.Exit{Reason: engine.ExitOOM, Detail: fmt.Sprintf("killed by the kernel at the limit of %d MiB", g.limits.MemoryMB)}
	case status.Signaled():
		return engine.Exit{Reason: engine.ExitCrashed, Detail: joinWords(fmt.Sprintf("its sandbox process was killed by %s", cmp.Or(unix.SignalName(status.Signal()), status.Signal().String())), words)}
	case err != nil && exit == nil:
		return engine.Exit{Reason: engine.ExitCrashed, Detail: clean(err.Error())}
	case words != "":
		return engine.Exit{Reason: engine.ExitCrashed, Detail: words}
	}
	return engine.Exit{Reason: engine.ExitExited, Code: status.ExitStatus(), Detail: g.stderr.lastLine()}
}

func joinWords(a, b string) string {
	if b == "" {
		return a
	}
	return a + ": " + b
}

// endProcesses ends the processes of a guest whose boot has failed with err, and
// gives them the time for their last words if that is of interest.
func (g *guest) endProcesses(err error, listen bool) {
	end := func(cmd *exec.Cmd, timeout time.Duration) {
		if cmd == nil {
			return
		}
		kill := time.AfterFunc(timeout, func() { cmd.Process.Kill() }) // fails only if it has ended
		cmd.Wait()
		kill.Stop()
	}
	sentry, gofer := lastWordsTimeout, dyingTimeout // a gofer ends by itself without a sentry
	var load *loadError
	switch {
	case !listen:
		sentry, gofer = 0, 0
	case errors.As(err, &load) && load.answered:
		sentry = 0
	case errors.As(err, &load):
		sentry = dyingTimeout
	}
	end(g.sentry, sentry)
	for _, cmd := range g.gofers {
		end(cmd, gofer)
	}
}

// processes returns those that have been started.
func (g *guest) processes() []*exec.Cmd {
	return append(slices.Clone(g.gofers), g.sentry)
}

// endedByItself reports whether a reaped process was not killed.
func endedByItself(cmd *exec.Cmd) bool {
	return cmd != nil && cmd.ProcessState != nil && cmd.ProcessState.Exited()
}

// servedWell reports, after the end of all processes, whether the file server of the
// sentry worked.
func (g *guest) servedWell() bool {
	if slices.ContainsFunc(g.gofers, func(cmd *exec.Cmd) bool { return !endedByItself(cmd) }) {
		return false
	}
	return len(g.gofers) > 0 || g.root.close() == nil
}

// free frees everything but the processes, which have ended.
func (g *guest) free() {
	g.unbind()
	g.e.users.give(g.user)
	if g.link != nil {
		g.link.Close()
	}
	if g.disk != nil {
		g.disk.Close()
	}
	g.e.disk.release(g.quota)
	g.root.close() // its error does not matter any more
	g.stderr.close()
	g.report.close()
	if err := os.Remove(g.socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		g.e.log.Warn("control socket left behind", logkey.Guest, g.id, logkey.Error, err)
	}
	if err := g.group.remove(); err != nil {
		g.e.log.Warn("cgroup left behind", logkey.Guest, g.id, logkey.Error, err)
	}
	if err := g.e.roots.put(g.tree); err != nil {
		g.e.log.Warn("root left behind", logkey.Guest, g.id, logkey.Error, err)
	}
}

// setPaused changes whether the guest runs.
func (g *guest) setPaused(ctx context.Context, paused bool) error {
	if err := g.enter(ctx); err != nil {
		return err
	}
	return g.callSentry(ctx, g.e.hangLimit, func() error {
		if g.paused == paused {
			return nil
		}
		if !paused {
			if err := g.bind(); err != nil {
				return err
			}
		}
		err := g.callPause(paused)
		if err == nil {
			g.paused = paused
		}
		if g.paused {
			g.unbind()
		}
		return err
	})
}

// callPause makes the sentry pause or resume the guest.
//
// To resume, it does not call boot.ContMgrResume, which then looks at the open files of
// the running guest, for those of an accelerator. A guest that reads /proc meanwhile can
// make that a deadlock of the sentry's locks for tasks and for /proc.
func (g *guest) callPause(paused bool) error {
	method := "Lifecycle.Resume"
	if paused {
		method = "Lifecycle.Pause"
	}
	return g.control(context.Background(), func(c *urpc.Client) error { return c.Call(method, &control.ContainerArgs{}, nil) })
}

// enter acquires the exclusive right to pause, resume or snapshot the guest. The
// caller releases it with leave or callSentry.
func (g *guest) enter(ctx context.Context) error {
	select {
	case g.pause <- struct{}{}:
	case <-g.end.Done():
		return engine.ErrGone
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-g.end.Done():
		g.leave()
		return engine.ErrGone
	default:
		return nil
	}
}

func (g *guest) leave() { <-g.pause }

// callSentry makes a call to the sentry that pauses, resumes or snapshots the guest, and
// leaves. The sentry counts pauses, so such a call always runs to its end: if ctx
// ends first, a goroutine completes it and leaves then. The end of the guest ends it
// too. A sentry that has not answered within limit hangs, possibly with its guest
// paused, and is killed.
func (g *guest) callSentry(ctx context.Context, limit time.Duration, call func() error) error {
	done := make(chan error, 1)
	hung := time.AfterFunc(limit, func() {
		g.kill(engine.ExitCrashed, fmt.Sprintf("sentry did not answer within %v while it paused or stored the guest", limit))
	})
	go func() {
		err := call()
		hung.Stop()
		g.leave()
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil {
			return nil
		}
		// An error that the sentry itself returned does not mean its end.
		var remote urpc.RemoteError
		if !errors.As(err, &remote) {
			g.waitIfDying()
		}
		select {
		case <-g.end.Done():
			return engine.ErrGone
		default:
			return err
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// waitIfDying waits for a guest that does not answer to be recognized as ended, so
// that the caller returns ErrGone.
func (g *guest) waitIfDying() {
	select {
	case <-g.end.Done():
	case <-time.After(goferTimeout):
	}
}
