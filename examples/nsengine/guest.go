//go:build linux

package nsengine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"

	"github.com/glovebox-dev/glovebox/engine"
)

// guest is an agent and all processes of its PID namespace.
type guest struct {
	id     string
	home   string
	cmd    *exec.Cmd
	stream *stream
	ended  chan struct{} // closed when nothing is left
	exit   engine.Exit   // set before ended is closed

	mu        sync.Mutex
	reaped    bool // guarded by mu; the agent's pid may be another's
	destroyed bool // guarded by mu; Destroy has killed the agent
}

// enter is run by the shell as the first process of a guest. It mounts the /proc of
// the new PID namespace, hides the host's cgroups and /opt, because an agent that is
// process 1 and root manages the cgroups and writes /opt/glovebox of its guest, and
// becomes the agent.
const enter = `mount -t proc proc /proc && mount -t tmpfs -o ro none /sys/fs/cgroup && mount -t tmpfs none /opt && exec "$0" "$@"`

// start starts the agent and a goroutine that frees everything at its end and then
// calls release.
func start(id, home string, spec *engine.Spec, release func()) (_ *guest, err error) {
	if err := os.Mkdir(home, 0o755); err != nil {
		return nil, fmt.Errorf("create home: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(home)
		}
	}()
	s, stdin, stdout, err := newStream()
	if err != nil {
		return nil, fmt.Errorf("create pipes: %w: %w", err, engine.ErrExhausted)
	}
	defer stdin.Close()
	defer stdout.Close()
	g := &guest{
		id: id, home: home, stream: s, ended: make(chan struct{}),
		cmd: &exec.Cmd{
			Path: "/bin/sh", Args: append([]string{"sh", "-c", enter, spec.Agent.Path}, spec.Agent.Args[1:]...),
			Dir: home, Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + home},
			Stdin: stdin, Stdout: stdout, SysProcAttr: namespaces(),
		},
	}
	started := make(chan error)
	go func() {
		// Pdeathsig is sent when the thread that started the agent ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := g.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		g.cmd.Wait() // returns when the namespace is empty; the result is in ProcessState
		g.finish()
		release()
		close(g.ended)
	}()
	if err := <-started; err != nil {
		s.close()
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM) {
			return nil, fmt.Errorf("start agent: %w: %w", err, engine.ErrExhausted)
		}
		return nil, fmt.Errorf("start agent: %w: %w", err, engine.ErrUnavailable)
	}
	return g, nil
}

// finish frees what the guest holds and records why it has ended.
func (g *guest) finish() {
	g.mu.Lock()
	g.reaped = true
	destroyed := g.destroyed
	g.mu.Unlock()
	g.stream.close()
	removeAll(g.home)
	status, _ := g.cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case destroyed && status.Signaled():
		g.exit = engine.Exit{Reason: engine.ExitDestroyed}
	case status.Signaled():
		g.exit = engine.Exit{Reason: engine.ExitExited, Code: 128 + int(status.Signal()), Detail: g.cmd.ProcessState.String()}
	default:
		g.exit = engine.Exit{Reason: engine.ExitExited, Code: status.ExitStatus(), Detail: g.cmd.ProcessState.String()}
	}
}

// ID returns the id passed to Create.
func (g *guest) ID() string { return g.id }

// Dial opens the stream to the agent. See engine.Guest.
func (g *guest) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	conn, err := g.stream.dial()
	if err != nil {
		return nil, fmt.Errorf("dial guest %q: %w", g.id, engine.ErrGone)
	}
	return conn, nil
}

// Wait blocks until the guest has ended. See engine.Guest.
func (g *guest) Wait(ctx context.Context) (engine.Exit, error) {
	select {
	case <-g.ended:
		return g.exit, nil
	default:
	}
	select {
	case <-g.ended:
		return g.exit, nil
	case <-ctx.Done():
		return engine.Exit{}, context.Cause(ctx)
	}
}

// Destroy ends the guest. Killing the first process of a PID namespace kills all
// others.
func (g *guest) Destroy(ctx context.Context) error {
	g.mu.Lock()
	if !g.reaped {
		g.destroyed = true
		g.cmd.Process.Kill() // fails if it has just ended
	}
	g.mu.Unlock()
	_, err := g.Wait(ctx)
	return err
}

// removeAll removes dir even if the guest has removed its own permissions.
func removeAll(dir string) {
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(path, 0o700)
		}
		return nil
	})
	os.RemoveAll(dir)
}
