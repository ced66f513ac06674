//go:build linux

// Package nsengine is an example of an engine outside of Glovebox's module. It runs
// the agent as the first process of a PID and mount namespace of its own: when the
// agent ends, the kernel kills all other processes of the guest. Apart from that a
// guest sees the host, so nsengine isolates nothing and is not for use.
//
// It imports Glovebox's public packages only. The walk through it is in
// docs/adding-an-engine.md.
package nsengine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

const name = "namespaces"

// Factory returns the factory that a program lists among its engines.
func Factory() engine.Factory {
	return engine.Factory{
		Name:    name,
		Version: func() (string, time.Time) { return "1", time.Time{} },
		Probe:   probe,
		Open: func(_ context.Context, cfg engine.Config) (engine.Engine, error) {
			e, err := open(cfg.StateDir)
			if err != nil {
				return nil, fmt.Errorf("open %s engine: %w", name, err)
			}
			return e, nil
		},
	}
}

// probe starts a program in the namespaces that guests need.
func probe(ctx context.Context) []engine.Finding {
	cmd := exec.CommandContext(ctx, "/bin/true")
	cmd.SysProcAttr = namespaces()
	if err := cmd.Run(); err != nil {
		return []engine.Finding{{
			Name: "namespaces", Level: engine.LevelFail, Detail: "cannot create namespaces: " + err.Error(),
			Fix: "run as root, or type: sudo sysctl -w user.max_user_namespaces=15000",
		}}
	}
	return []engine.Finding{{Name: "namespaces", Level: engine.LevelOK, Detail: "can be created"}}
}

// host is an engine. Its guests are in the map while they live; nil reserves an id.
type host struct {
	dir string // has a home directory for each guest

	mu      sync.Mutex
	guests  map[string]*guest // guarded by mu
	closed  bool              // guarded by mu
	creates sync.WaitGroup    // calls of Create in progress; Add under mu while not closed
}

func open(dir string) (*host, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return nil, err
	}
	return &host{dir: dir, guests: make(map[string]*guest)}, nil
}

// Info describes the engine. No limit is listed, since it enforces none.
func (h *host) Info() engine.Info {
	return engine.Info{Name: name, Version: "1", Isolation: engine.IsolationNone}
}

// Create boots a guest. See engine.Engine.
func (h *host) Create(ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
	g, err := h.create(ctx, id, spec)
	if err != nil {
		return nil, fmt.Errorf("create guest %q: %w", id, err)
	}
	return g, nil
}

func (h *host) create(ctx context.Context, id string, spec *engine.Spec) (*guest, error) {
	if err := engine.CheckID(id); err != nil {
		return nil, err
	}
	if err := check(ctx, spec); err != nil {
		return nil, err
	}
	if err := h.reserve(id); err != nil {
		return nil, err
	}
	defer h.creates.Done()
	g, err := start(id, filepath.Join(h.dir, id), spec, func() { h.release(id) })
	if err != nil {
		h.release(id)
		return nil, err
	}
	h.mu.Lock()
	if _, lives := h.guests[id]; lives {
		h.guests[id] = g
	}
	h.mu.Unlock()
	// If ctx ended meanwhile, the caller does not expect a guest.
	if err := context.Cause(ctx); err != nil {
		g.Destroy(context.Background())
		return nil, err
	}
	return g, nil
}

// check validates a spec and rejects what this engine lacks.
func check(ctx context.Context, spec *engine.Spec) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := spec.Validate(); err != nil {
		return err
	}
	tree, err := spec.Root.Unpack(ctx) // on this host, also if the root is an image
	if err != nil {
		return err
	}
	if tree.File != "" {
		return fmt.Errorf("root file %q: %w", tree.File, engine.ErrUnsupported)
	}
	if info, err := os.Stat(tree.Dir); err != nil || !info.IsDir() {
		return fmt.Errorf("root %q is not a directory: %w", tree.Dir, engine.ErrInvalid)
	}
	if spec.Agent.Image != nil {
		return fmt.Errorf("agent in an image: %w", engine.ErrUnsupported)
	}
	if info, err := os.Stat(spec.Agent.Path); err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("agent %q is not a file: %w", spec.Agent.Path, engine.ErrInvalid)
	}
	for _, m := range spec.Mounts {
		if _, err := os.Stat(m.Host); m.Host != "" && err != nil {
			return fmt.Errorf("mount of %q: %w: %w", m.Host, err, engine.ErrInvalid)
		}
	}
	if len(spec.Mounts) > 0 {
		return fmt.Errorf("volumes: %w", engine.ErrUnsupported)
	}
	return nil
}

func (h *host) reserve(id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return fmt.Errorf("engine closed: %w", engine.ErrGone)
	}
	if _, taken := h.guests[id]; taken {
		return engine.ErrExists
	}
	h.guests[id] = nil
	h.creates.Add(1)
	return nil
}

func (h *host) release(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.guests, id)
}

// Close destroys all guests.
func (h *host) Close() error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.creates.Wait()

	var wait sync.WaitGroup
	h.mu.Lock()
	for _, g := range h.guests {
		wait.Go(func() { g.Destroy(context.Background()) })
	}
	h.mu.Unlock()
	wait.Wait()
	return nil
}

// namespaces are those of a guest. An ordinary user becomes root in a user
// namespace as well.
func namespaces() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Cloneflags:   syscall.CLONE_NEWPID,
		Unshareflags: syscall.CLONE_NEWNS, // unlike with Cloneflags, its mounts do not show outside
		Setsid:       true,                // not for the signals of the terminal
		Pdeathsig:    syscall.SIGKILL,
	}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	return attr
}
