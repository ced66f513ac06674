//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

// Config is the configuration of the engine.
type Config struct {
	// Dir is where guests have their homes. Required; made if missing.
	Dir string
	// Log is where the engine logs to. Default: nowhere.
	Log *slog.Logger
}

// Engine runs guests as plain processes. It implements engine.Engine.
type Engine struct {
	dir string
	log *slog.Logger

	mu      sync.Mutex
	guests  map[string]*guest // guarded by mu; nil values are being created
	closed  bool              // guarded by mu
	creates sync.WaitGroup    // creates under way; Add under mu while not closed
}

var _ engine.Engine = (*Engine)(nil)

// Open returns an engine. The caller closes it.
func Open(cfg Config) (*Engine, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("open process engine: directory %q is not absolute: %w", cfg.Dir, engine.ErrInvalid)
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("open process engine: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("open process engine: become subreaper: %w", err)
	}
	return &Engine{dir: cfg.Dir, log: cfg.Log, guests: make(map[string]*guest)}, nil
}

// Info says what the engine is.
func (e *Engine) Info() engine.Info {
	return engine.Info{
		Name:      "process",
		Version:   "1",
		Isolation: engine.IsolationNone,
		Caps:      engine.CapPauser | engine.CapStatser,
		Limits: []engine.Limit{
			{Resource: "memory", By: "watcher", Why: "plain processes share the host's memory"},
		},
	}
}

// Home returns the directory of guest id. It exists while the guest lives.
func (e *Engine) Home(id string) string { return filepath.Join(e.dir, id) }

// Create starts the agent. See engine.Engine.
func (e *Engine) Create(ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
	if err := engine.CheckID(id); err != nil {
		return nil, fmt.Errorf("create guest: %w", err)
	}
	if err := validate(spec); err != nil {
		return nil, fmt.Errorf("create guest %q: %w", id, err)
	}
	if err := e.reserve(id); err != nil {
		return nil, fmt.Errorf("create guest %q: %w", id, err)
	}
	defer e.creates.Done()

	g, err := e.boot(ctx, id, spec)
	if err != nil {
		e.release(id)
		return nil, fmt.Errorf("create guest %q: %w", id, err)
	}
	return g, nil
}

// boot starts the guest and enters it among the living ones, from which its end
// removes it.
func (e *Engine) boot(ctx context.Context, id string, spec *engine.Spec) (*guest, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	g, err := start(id, e.Home(id), spec, e.log)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.guests[id] = g
	e.mu.Unlock()
	go g.run(func() { e.release(id) })
	if err := context.Cause(ctx); err != nil {
		g.Destroy(context.WithoutCancel(ctx)) // cannot fail: the wait has no end but the guest's
		return nil, err
	}
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
	defer e.mu.Unlock()
	delete(e.guests, id)
}

// Close destroys every guest that is left.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.creates.Wait()

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
	return nil
}

// validate checks what the contract asks of a spec, and that its files exist.
func validate(s *engine.Spec) error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf(format+": %w", append(args, engine.ErrInvalid)...)
	}
	if err := s.Validate(); err != nil {
		return err
	}
	if info, err := os.Stat(s.Root.Dir); err != nil || !info.IsDir() {
		return invalid("root %q is not a directory", s.Root.Dir)
	}
	for _, m := range append(append([]engine.Mount(nil), s.Root.Binds...), s.Mounts...) {
		if _, err := os.Stat(m.Host); err != nil {
			return invalid("mount of %q: %v", m.Host, err)
		}
	}
	if info, err := os.Stat(s.Agent.Path); errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return invalid("agent %q is not a file", s.Agent.Path)
	}
	if len(s.Mounts) > 0 {
		return fmt.Errorf("volumes without isolation: %w", engine.ErrUnsupported)
	}
	return nil
}
