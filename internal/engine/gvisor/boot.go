//go:build linux && (amd64 || arm64)

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/guests"
	"github.com/glovebox-dev/glovebox/internal/engine/stdiolink"
)

const (
	// bootTimeout bounds a boot whose caller set no timeout: a hundred times its
	// duration on an idle machine.
	bootTimeout = 30 * time.Second
	// pipeSize is the size of the pipes to and from the agent, if the host allows:
	// large writes take fewer trips through the sentry.
	pipeSize = 1 << 20
	// reportSize bounds the error report of a gVisor process.
	reportSize = 8 << 10
)

// boot starts a guest's kernel and calls begin when it is ready to run something.
// After an error nothing is left.
func (e *Engine) boot(ctx context.Context, id string, p *plan, begin func(*guest, context.Context) error) (_ *guest, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bootTimeout, fmt.Errorf("boot took longer than %v: %w", bootTimeout, engine.ErrUnavailable))
	defer cancel()
	select {
	case e.boots <- struct{}{}:
		defer func() { <-e.boots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	tree, err := e.roots.get(p)
	if err != nil {
		return nil, err
	}

	g := &guest{e: e, id: id, tree: tree, limits: p.Limits, made: p.made, socket: e.dir.socket(id), end: guests.NewEnd()}
	var spare files
	defer spare.close()
	defer func() {
		if err == nil {
			return
		}
		spare.close() // or the gofer would wait for the other end forever
		g.endProcesses(err, context.Cause(ctx) == nil)
		report := g.report.tail()
		g.free()
		if report != "" {
			err = fmt.Errorf("%w (gvisor: %s)", err, report)
		}
		var load *loadError
		switch {
		case exhausted(err, report):
			err = fmt.Errorf("%w: %w", err, engine.ErrExhausted)
		case isSentinel(err):
		case errors.As(err, &load) && (load.answered || endedByItself(g.sentry)) && g.servedWell():
			err = fmt.Errorf("%w: %w", &unloadable{notLoaded(p.made), err}, engine.ErrInvalid)
		default:
			err = fmt.Errorf("%w: %w", err, engine.ErrUnavailable)
		}
	}()

	l := &launch{id: id, spec: p.Spec, tree: tree, bundle: e.dir.root, socket: g.socket, debug: e.cfg.DebugDir, cpus: e.cpus.visible(p.Limits)}
	if err := g.openStreams(l, &spare); err != nil {
		return nil, err
	}
	if g.group, err = e.groups.create(id, p.Limits); err != nil {
		return nil, err
	}
	l.group = g.group
	if g.quota, err = e.disk.admit(p.Limits, p.disk); err != nil {
		return nil, err
	}
	if g.disk, err = e.dir.scratch(); err != nil {
		return nil, fmt.Errorf("make disk file: %w", err)
	}
	e.disk.watch(g.quota, g.disk)
	l.disk = g.disk
	if l.volumes, err = e.vols.open(p.Mounts); err != nil {
		return nil, err
	}
	defer l.volumes.close()
	if g.user, err = e.users.take(); err != nil {
		return nil, err
	}
	l.user = g.user
	s, err := l.start(e, &spare)
	g.gofers, g.root, g.sentry = s.gofers, s.root, s.sentry
	if err != nil {
		return nil, err
	}
	// Only the children hold the far ends, so that the pipes close with them.
	spare.closeExcept(s.ready)
	if err := waitReady(ctx, s.ready); err != nil {
		return nil, fmt.Errorf("wait for the sentry: %w", err)
	}
	if err := g.bind(); err != nil {
		return nil, err
	}
	if err := begin(g, ctx); err != nil {
		return nil, err
	}
	return g, nil
}

// openStreams creates the pipes to the agent and for the processes' error reports.
func (g *guest) openStreams(l *launch, spare *files) error {
	in, inW, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	spare.add(in)
	outR, out, err := os.Pipe()
	if err != nil {
		inW.Close()
		return fmt.Errorf("make pipe: %w", err)
	}
	spare.add(out)
	g.link = stdiolink.New(outR, inW)
	for _, f := range []*os.File{in, outR} {
		// Best effort: an ordinary user has a budget for pipes.
		resize(f, pipeSize)
	}
	var errW, reportW *os.File
	if g.stderr, errW, err = newTail(); err != nil {
		return err
	}
	spare.add(errW)
	if g.report, reportW, err = newReport(); err != nil {
		return err
	}
	spare.add(reportW)
	l.stdio = [3]*os.File{in, out, errW}
	l.report = reportW
	return nil
}

// waitReady waits until the sentry serves its control socket.
func waitReady(ctx context.Context, ready *os.File) error {
	stop := context.AfterFunc(ctx, func() { ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return fmt.Errorf("it ended during its boot: %w", err)
	}
	return nil
}

// startAgent configures the guest's loopback interface and starts its first process.
func (g *guest) startAgent(ctx context.Context) error {
	return g.control(ctx, func(c *urpc.Client) error {
		if err := setUpLoopback(c); err != nil {
			return err
		}
		if err := c.Call(boot.ContMgrRootContainerStart, &g.id, nil); err != nil {
			return fmt.Errorf("start agent: %w", err)
		}
		return nil
	})
}

func setUpLoopback(c *urpc.Client) error {
	args := &boot.CreateLinksAndRoutesArgs{LoopbackLinks: []boot.LoopbackLink{boot.DefaultLoopbackLink}}
	if err := c.Call(boot.ContMgrSetNetworkArgs, args, nil); err != nil {
		return fmt.Errorf("set up loopback: %w", err)
	}
	return nil
}

// control calls the sentry. It ends the connection, and so the call, when ctx ends.
func (g *guest) control(ctx context.Context, call func(*urpc.Client) error) error {
	c, err := dialControl(g.socket)
	if err != nil {
		return fmt.Errorf("connect to the sentry: %w", err)
	}
	defer c.Close()
	// Not Close, which waits for the call.
	stop := context.AfterFunc(ctx, func() { _ = c.Socket.Shutdown() })
	defer stop()
	if err := call(c); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	return nil
}

func isSentinel(err error) bool {
	for _, s := range []error{
		engine.ErrExists, engine.ErrInvalid, engine.ErrUnsupported,
		engine.ErrUnavailable, engine.ErrExhausted, engine.ErrGone, context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, s) {
			return true
		}
	}
	return false
}

// resize sets the size of a pipe and reports whether the host allowed it.
func resize(f *os.File, size int) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	ok := false
	raw.Control(func(fd uintptr) {
		_, err := unix.FcntlInt(fd, unix.F_SETPIPE_SZ, size)
		ok = err == nil
	})
	return ok
}
