//go:build linux && (amd64 || arm64)

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/engine/guests"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// Config is the configuration of the engine. The zero value of each field means
// its default.
type Config struct {
	// StateDir is the directory for the engine's files. Required; created if missing.
	// The writable layers of guests are on its file system.
	StateDir string
	// Log is the engine's log. Default: discarded.
	Log *slog.Logger
	// Boots bounds the guests that boot concurrently. Default: twice the processors,
	// since a boot waits for the kernel about half of its time.
	Boots int
	// SweepEvery is the interval in which the engine removes files and cgroups of
	// dead processes. 0: only in Open.
	SweepEvery time.Duration
	// Disk limits how much of the file system of StateDir guests may fill.
	Disk hostdisk.Policy
	// DebugDir, if set, is the directory for gVisor's debug logs, which are large,
	// unbounded and slow. For developers.
	DebugDir string
}

// Engine runs guests under gVisor. It implements engine.Engine.
type Engine struct {
	cfg       Config
	log       *slog.Logger
	dir       *stateDir
	roots     *roots
	spawn     *spawner
	users     *users
	vols      *volumes
	cpus      *processors
	groups    *cgroups // nil without cgroups
	watch     *watcher
	disk      *disk
	agents    *digests      // of agents' executables
	checks    *checks       // of snapshots' files
	boots     chan struct{} // a token per boot in progress
	info      engine.Info
	set       *guests.Set[*guest]
	sweeps    sync.WaitGroup // the sweeper
	hangLimit time.Duration  // hangTimeout; tests set less before they create guests

	closeOnce sync.Once
	closeErr  error
}

var (
	_ engine.Engine      = (*Engine)(nil)
	_ engine.Pauser      = (*Engine)(nil)
	_ engine.Statser     = (*Engine)(nil)
	_ engine.Snapshotter = (*Engine)(nil)
	_ hostdisk.Engine    = (*Engine)(nil)
)

// Open returns an engine. Enter must have returned in this process. The caller
// closes the engine.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	if cfg.StateDir == "" {
		return nil, fmt.Errorf("open gvisor engine: no state directory: %w", engine.ErrInvalid)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Boots <= 0 {
		cfg.Boots = 2 * runtime.NumCPU()
	}
	if !canMount() {
		return nil, fmt.Errorf("open gvisor engine: the process may not mount: call Enter first: %w", engine.ErrUnavailable)
	}
	dir, err := openStateDir(cfg.StateDir)
	if err != nil {
		return nil, fmt.Errorf("open gvisor engine: %w", err)
	}
	shared, err := newDisk(dir, cfg.Disk, cfg.Log)
	if err != nil {
		return nil, fmt.Errorf("open gvisor engine: %w", errors.Join(err, dir.close()))
	}
	e := &Engine{
		disk:      shared,
		cfg:       cfg,
		log:       cfg.Log,
		dir:       dir,
		roots:     newRoots(dir),
		spawn:     newSpawner(),
		users:     newUsers(),
		vols:      newVolumes(cfg.Log),
		cpus:      newProcessors(),
		agents:    newDigests(),
		checks:    newChecks(time.Now),
		boots:     make(chan struct{}, cfg.Boots),
		set:       guests.NewSet[*guest](),
		hangLimit: hangTimeout,
	}
	var noGroups error
	e.groups, noGroups = openCgroups(dir.name)
	if sysmonErr != nil {
		e.log.Info("cannot reduce polling of the Go runtime", logkey.Error, sysmonErr)
	}
	if noGroups != nil {
		e.log.Info("no cgroups: a watcher enforces limits instead of the kernel", logkey.Error, noGroups)
	}
	e.watch = newWatcher()
	pin, _ := Version()
	e.info = engine.Info{
		Name:      "gvisor",
		Version:   pin,
		Isolation: engine.IsolationKernel,
		Limits:    limits(e.groups, noGroups),
	}
	if cfg.SweepEvery > 0 {
		e.sweeps.Go(e.sweep)
	}
	return e, nil
}

// sweep removes files and cgroups of dead processes until Close.
func (e *Engine) sweep() {
	t := time.NewTicker(e.cfg.SweepEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			removeStale(filepath.Dir(e.dir.root))
			e.groups.removeStale()
			if err := e.groups.removeLeft(); err != nil {
				e.log.Warn("cgroups left behind", logkey.Error, err)
			}
		case <-e.set.Closing():
			return
		}
	}
}

// Info describes the engine.
func (e *Engine) Info() engine.Info {
	info := e.info
	info.Limits = append([]engine.Limit(nil), e.info.Limits...)
	return info
}

// Create boots a guest. See engine.Engine.
func (e *Engine) Create(ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
	g, err := e.create(ctx, id, spec)
	if err != nil {
		return nil, fmt.Errorf("create guest %q: %w", id, err)
	}
	return g, nil
}

func (e *Engine) create(ctx context.Context, id string, spec *engine.Spec) (*guest, error) {
	p, err := e.plan(ctx, id, spec)
	if err != nil {
		return nil, err
	}
	return e.bootPlan(ctx, id, p, (*guest).startAgent)
}

// plan is a valid spec whose root is a tree of this host, and the part of it that
// snapshots record.
type plan struct {
	*engine.Spec
	tree *engine.Tree
	made fixedSpec
	disk int64 // bytes of the writable layer that the guest starts with
}

// plan validates a spec and unpacks its root.
func (e *Engine) plan(ctx context.Context, id string, spec *engine.Spec) (*plan, error) {
	if err := engine.CheckID(id); err != nil {
		return nil, err
	}
	if err := validate(spec); err != nil {
		return nil, err
	}
	agent, err := e.agents.of(spec.Agent.Path)
	if err != nil {
		return nil, err
	}
	tree, err := spec.Root.Unpack(ctx)
	if err != nil {
		return nil, err
	}
	return &plan{Spec: spec, tree: tree, made: fix(spec, agent)}, nil
}

// bootPlan boots a guest and has begin start its first process.
func (e *Engine) bootPlan(ctx context.Context, id string, p *plan, begin func(*guest, context.Context) error) (*guest, error) {
	return e.set.Create(ctx, id, func(ctx context.Context, release func()) (*guest, error) {
		g, err := e.boot(ctx, id, p, begin)
		if err != nil {
			return nil, err
		}
		g.adopt(release)
		return g, nil
	})
}

// Pause stops everything in a guest. See engine.Pauser.
func (e *Engine) Pause(ctx context.Context, id string) error {
	return e.call("pause", id, func(g *guest) error { return g.setPaused(ctx, true) })
}

// Resume lets a paused guest run again. See engine.Pauser.
func (e *Engine) Resume(ctx context.Context, id string) error {
	return e.call("resume", id, func(g *guest) error { return g.setPaused(ctx, false) })
}

// Stats measures a guest's processes on the host. See engine.Statser.
func (e *Engine) Stats(ctx context.Context, id string) (s engine.Stats, err error) {
	err = e.call("measure", id, func(g *guest) error {
		s, err = g.stats(ctx)
		return err
	})
	return s, err
}

// Snapshot writes a guest into dir. See engine.Snapshotter.
func (e *Engine) Snapshot(ctx context.Context, id, dir string) (string, error) {
	return "", e.call("snapshot", id, func(g *guest) error { return g.snapshot(ctx, dir) })
}

// call calls f with a living guest and adds context to its error.
func (e *Engine) call(verb, id string, f func(*guest) error) error {
	g, err := e.set.Get(id)
	if err == nil {
		err = f(g)
	}
	if err != nil {
		return fmt.Errorf("%s guest %q: %w", verb, id, err)
	}
	return nil
}

// Disk describes the file system that guests write to. See hostdisk.Engine.
func (e *Engine) Disk() (hostdisk.Use, error) { return e.disk.use() }

// Reclaimable returns how much disk space the end of each guest would free. See hostdisk.Engine.
func (e *Engine) Reclaimable() map[string]int64 { return e.disk.reclaimable() }

// Borrowed returns how much each guest has written beyond its guarantee. See hostdisk.Engine.
func (e *Engine) Borrowed() map[string]int64 { return e.disk.borrowed() }

// Unreserve gives up the reservations of disk space. See hostdisk.Engine.
func (e *Engine) Unreserve() { e.disk.unreserve() }

// Close destroys every guest and frees the engine's resources.
func (e *Engine) Close() error {
	e.closeOnce.Do(func() { e.closeErr = e.close() })
	return e.closeErr
}

func (e *Engine) close() error {
	e.set.Close()
	e.sweeps.Wait()
	e.watch.close()
	e.spawn.close()
	return errors.Join(e.disk.close(), e.roots.close(), e.groups.close(), e.dir.close())
}
