//go:build linux

package microsandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/guests"
	"github.com/glovebox-dev/glovebox/internal/owned"
)

// Config is the configuration of the engine.
type Config struct {
	// StateDir is the parent of the engine's directory. Required; created if missing.
	StateDir string
	// Helper is the path on this host of a static executable that is the helper of
	// internal/guest/pod when it is started under that name. Required.
	Helper string
	// Program is the path of msb. Default: that of PATH, or where its installer puts it.
	Program string
	// SweepEvery is the interval in which guests of dead processes are removed. 0: only
	// in Open.
	SweepEvery time.Duration
	// Log is the engine's log. Default: discarded.
	Log *slog.Logger
}

// Engine runs guests as microVMs. It implements engine.Engine, engine.Pauser,
// engine.Recoverer and engine.Statser.
type Engine struct {
	msb     *client
	version string
	helper  string
	dir     string // of all engines with the state directory
	holder  *holder
	roots   *roots
	log     *slog.Logger
	set     *guests.Set[*guest]

	stop    context.CancelFunc
	workers sync.WaitGroup
	close   sync.Once
}

var (
	_ engine.Engine    = (*Engine)(nil)
	_ engine.Pauser    = (*Engine)(nil)
	_ engine.Recoverer = (*Engine)(nil)
	_ engine.Statser   = (*Engine)(nil)
)

// Open checks msb and the host, removes what dead processes have left, and returns an
// engine. The caller closes it. Errors: *engine.HostError, those of the file system.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	e, err := open(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open the microsandbox engine: %w", err)
	}
	return e, nil
}

func open(ctx context.Context, cfg Config) (*Engine, error) {
	path, err := find(cfg.Program)
	if err != nil {
		return nil, err
	}
	version, err := versionOf(ctx, path)
	if err != nil {
		return nil, err
	}
	if err := checkKVM(kvmDevice); err != nil {
		return nil, err
	}
	dir, err := openDir(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	msb := newClient(path, filepath.Join(dir, "home"))
	own, err := newHolder(dir)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		msb: msb, version: version, helper: cfg.Helper, dir: dir, holder: own, log: cfg.Log,
		roots: newRoots(msb, dir), set: guests.NewSet[*guest](),
	}
	if err := e.sweep(); err != nil {
		own.close()
		return nil, err
	}
	running, stop := context.WithCancel(context.Background())
	e.stop = stop
	if cfg.SweepEvery > 0 {
		e.workers.Go(func() { e.sweepEvery(running, cfg.SweepEvery) })
	}
	return e, nil
}

// maxHome is the length of MSB_HOME up to which msb can make its sockets: their addresses
// have 107 bytes at most, and add "/run/sandboxes/", 24 digits, and "/agent.sock".
const maxHome = 107 - 50

// openDir makes the directory of all engines with the state directory.
func openDir(state string) (string, error) {
	state, err := filepath.Abs(state)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(state, "microsandbox")
	if err := os.MkdirAll(filepath.Join(dir, "home"), 0o700); err != nil {
		return "", err
	}
	if err := owned.Dir(dir); err != nil {
		return "", err
	}
	// Sources of mounts without symbolic links.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", err
	}
	if len(filepath.Join(dir, "home")) > maxHome {
		return "", fmt.Errorf("the state directory %q is too long for the addresses of msb's sockets: choose one with a path of %d bytes at most: %w", state, maxHome-len("/microsandbox/home"), engine.ErrUnsupported)
	}
	if !plainPath(dir) {
		return "", fmt.Errorf("the state directory %q contains a colon, comma or control character, which msb's options cannot express: choose another one: %w", dir, engine.ErrUnsupported)
	}
	return dir, nil
}

// Info describes the engine.
func (e *Engine) Info() engine.Info {
	return engine.Info{
		Name: Name, Version: e.version, Isolation: engine.IsolationVM,
		Limits: []engine.Limit{
			{Resource: "cpu", Hard: true, By: "whole virtual processors"},
			{Resource: "memory", Hard: true, By: "memory of the virtual machine"},
			{Resource: "disk", Hard: true, By: "size of the virtual disk"},
		},
	}
}

// Create boots a microVM. See engine.Engine.
func (e *Engine) Create(ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
	if err := engine.CheckID(id); err != nil {
		return nil, fmt.Errorf("create guest: %w", err)
	}
	g, err := e.set.Create(ctx, id, func(ctx context.Context, release func()) (*guest, error) {
		return e.boot(ctx, id, spec, release)
	})
	if err != nil {
		return nil, fmt.Errorf("create guest %q: %w", id, err)
	}
	return g, nil
}

func (e *Engine) boot(ctx context.Context, id string, spec *engine.Spec, release func()) (*guest, error) {
	if err := validate(spec); err != nil {
		return nil, err
	}
	image, binds, err := e.roots.prepare(ctx, &spec.Root)
	if err != nil {
		return nil, err
	}
	g := e.newGuest(id, newName(), release)
	var args []string
	if err = g.stage(spec.Agent.Path); err == nil {
		args, err = createArgs(g.name, id, image, g.share(), binds, spec)
	}
	if err != nil {
		g.removeDir()
		return nil, err
	}
	// The start is not interrupted: it would be unknown what has started already. The
	// caller's context may end it here, before and after.
	if err = context.Cause(ctx); err == nil {
		starting, cancel := context.WithTimeout(context.Background(), createWait)
		_, err = e.msb.run(starting, nil, args...)
		cancel()
		err = creationError(err)
	}
	if err == nil {
		err = g.start(ctx, spec)
	}
	if err != nil {
		g.remove()
		return nil, err
	}
	e.workers.Go(g.run)
	return g, nil
}

// creationError wraps the failure of a start in a sentinel.
func creationError(err error) error {
	switch {
	case err == nil:
		return nil
	case says(err, "No space left", "no space left", "Cannot allocate memory"), errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return fmt.Errorf("%w: %w", err, engine.ErrExhausted)
	}
	return unavailable(err)
}

// unavailable adds ErrUnavailable to a failure of msb.
func unavailable(err error) error {
	var failed *commandError
	if errors.As(err, &failed) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", err, engine.ErrUnavailable)
	}
	return err
}

// Close destroys the guests of this engine.
func (e *Engine) Close() error {
	e.set.Close()
	e.close.Do(func() {
		e.stop()
		e.workers.Wait()
		e.holder.close()
	})
	return nil
}
