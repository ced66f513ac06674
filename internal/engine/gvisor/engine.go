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
)

// Config is the configuration of the engine. The zero value of each field means
// its default.
type Config struct {
	// StateDir is where the engine keeps its files. Required; made if missing.
	// What guests write to disk goes to the file system it is on.
	StateDir string
	// Log is where the engine logs to. Default: nowhere.
	Log *slog.Logger
	// Boots is how many guests boot at a time. Default: twice the processors,
	// since a boot waits for the kernel about half of its time.
	Boots int
	// SweepEvery is how often, beside the start, what instances have left whose
	// process is gone is looked for and removed. 0: only at the start.
	SweepEvery time.Duration
	// DebugDir, if set, is where gVisor writes its debug logs: large, not bounded,
	// and slow. For developers.
	DebugDir string
}

// Engine runs guests under gVisor. It implements engine.Engine.
type Engine struct {
	cfg    Config
	log    *slog.Logger
	dir    *stateDir
	roots  *roots
	spawn  *spawner
	vols   *volumes
	cpus   *processors
	groups *cgroups // nil without cgroups
	watch  *watcher
	agents *digests      // of agents' executables
	checks *checks       // of snapshots' files
	boots  chan struct{} // a token per boot under way
	info   engine.Info

	mu      sync.Mutex
	guests  map[string]*guest // guarded by mu; nil values are being created
	closed  bool              // guarded by mu
	sweeps  sync.WaitGroup    // the sweeper
	creates sync.WaitGroup    // creates under way; Add under mu while not closed

	closing   context.Context // ended by Close: creates give up
	cancel    context.CancelCauseFunc
	closeOnce sync.Once
	closeErr  error
}

var (
	_ engine.Engine   = (*Engine)(nil)
	_ engine.Restorer = (*Engine)(nil)
)

// Open prepares the host for guests. The process must be inside Enter. The caller
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
	e := &Engine{
		cfg:    cfg,
		log:    cfg.Log,
		dir:    dir,
		roots:  newRoots(dir.path("roots")),
		spawn:  newSpawner(),
		vols:   newVolumes(cfg.Log),
		cpus:   newProcessors(),
		agents: newDigests(),
		checks: newChecks(time.Now),
		boots:  make(chan struct{}, cfg.Boots),
		guests: make(map[string]*guest),
	}
	var noGroups error
	e.groups, noGroups = openCgroups(dir.name)
	if noGroups != nil {
		e.log.Info("no cgroups: limits are watched, not held by the kernel", "err", noGroups)
	}
	e.watch = newWatcher()
	slackenWatch()
	pin, _ := Version()
	e.info = engine.Info{
		Name:      "gvisor",
		Version:   pin,
		Isolation: engine.IsolationKernel,
		Caps:      engine.CapPauser | engine.CapStatser | engine.CapSnapshotter | engine.CapRestorer,
		Limits:    limits(e.groups, noGroups),
	}
	e.closing, e.cancel = context.WithCancelCause(context.Background())
	if cfg.SweepEvery > 0 {
		e.sweeps.Go(e.sweep)
	}
	return e, nil
}

// sweep removes what dead instances have left, until Close.
func (e *Engine) sweep() {
	t := time.NewTicker(e.cfg.SweepEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			removeStale(filepath.Dir(e.dir.root))
			e.groups.removeStale()
		case <-e.closing.Done():
			return
		}
	}
}

// Info says what the engine is.
func (e *Engine) Info() engine.Info {
	info := e.info
	info.Limits = append([]engine.Limit(nil), e.info.Limits...)
	return info
}

// Create boots a guest. See engine.Engine.
func (e *Engine) Create(ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
	made, err := e.check(id, spec)
	if err != nil {
		return nil, fmt.Errorf("create guest %q: %w", id, err)
	}
	g, err := e.bringUp(ctx, id, spec, made, (*guest).startAgent)
	if err != nil {
		return nil, fmt.Errorf("create guest %q: %w", id, err)
	}
	return g, nil
}

// check fails if a guest cannot be made so, and returns of what it will be.
func (e *Engine) check(id string, spec *engine.Spec) (making, error) {
	if err := engine.CheckID(id); err != nil {
		return making{}, err
	}
	if err := validate(spec); err != nil {
		return making{}, err
	}
	agent, err := e.agents.of(spec.Agent.Path)
	if err != nil {
		return making{}, err
	}
	return newMaking(spec, agent), nil
}

// bringUp boots a guest and has begin set it going.
func (e *Engine) bringUp(ctx context.Context, id string, spec *engine.Spec, made making, begin func(*guest, context.Context) error) (*guest, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if err := e.reserve(id); err != nil {
		return nil, err
	}
	defer e.creates.Done()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.closing, func() { cancel(context.Cause(e.closing)) })()

	g, err := e.boot(ctx, id, spec, made, begin)
	if err != nil {
		e.release(id)
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, err
	}
	e.mu.Lock()
	if _, reserved := e.guests[id]; reserved { // not so if it has ended already
		e.guests[id] = g
	}
	e.mu.Unlock()
	g.adopt(func() { e.release(id) })
	return g, nil
}

// reserve takes the id and registers a create.
func (e *Engine) reserve(id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("engine closed: %w", engine.ErrGone)
	}
	if _, taken := e.guests[id]; taken {
		return engine.ErrExists
	}
	e.guests[id] = nil
	e.creates.Add(1)
	return nil
}

// release frees the id.
func (e *Engine) release(id string) {
	e.mu.Lock()
	delete(e.guests, id)
	e.mu.Unlock()
}

// Close destroys every guest and frees what the engine holds.
func (e *Engine) Close() error {
	e.closeOnce.Do(func() { e.closeErr = e.close() })
	return e.closeErr
}

func (e *Engine) close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.cancel(fmt.Errorf("engine closed: %w", engine.ErrGone))
	e.creates.Wait()
	e.sweeps.Wait()

	e.mu.Lock()
	left := make([]*guest, 0, len(e.guests))
	for _, g := range e.guests {
		left = append(left, g)
	}
	e.mu.Unlock()
	var wait sync.WaitGroup
	for _, g := range left {
		wait.Go(func() { g.Destroy(context.Background()) })
	}
	wait.Wait()

	e.watch.close()
	e.spawn.close()
	return errors.Join(e.roots.close(), e.groups.close(), e.dir.close())
}
