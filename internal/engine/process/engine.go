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

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/guests"
)

// Config is the configuration of the engine.
type Config struct {
	// Dir contains the homes of guests. Required; created if missing.
	Dir string
	// Log is the engine's log. Default: discarded.
	Log *slog.Logger
}

// Engine runs guests as plain processes. It implements engine.Engine.
type Engine struct {
	dir string
	log *slog.Logger
	set *guests.Set[*handle]
}

var (
	_ engine.Engine    = (*Engine)(nil)
	_ engine.Pauser    = (*Engine)(nil)
	_ engine.Statser   = (*Engine)(nil)
	_ engine.Recoverer = (*Engine)(nil)
)

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
	return &Engine{dir: filepath.Clean(cfg.Dir), log: cfg.Log, set: guests.NewSet[*handle]()}, nil
}

// Info describes the engine.
func (e *Engine) Info() engine.Info {
	return engine.Info{
		Name:      "process",
		Version:   "1",
		Isolation: engine.IsolationNone,
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
	h, err := e.set.Create(ctx, id, func(ctx context.Context, release func()) (*handle, error) {
		if err := validate(ctx, spec); err != nil {
			return nil, err
		}
		if lives(e.Home(id)) { // in another engine, or detached
			return nil, engine.ErrExists
		}
		g, err := start(id, e.Home(id), spec, e.log)
		if err != nil {
			return nil, err
		}
		h := &handle{guest: g, release: release, detached: make(chan struct{})}
		g.holder = h
		go g.run()
		if err := context.Cause(ctx); err != nil {
			g.destroy(context.WithoutCancel(ctx)) // cannot fail: its context does not end
			return nil, err
		}
		return h, nil
	})
	if err != nil {
		return nil, fmt.Errorf("create guest %q: %w", id, err)
	}
	return h, nil
}

// Close destroys the guests of this engine.
func (e *Engine) Close() error {
	e.set.Close()
	return nil
}

// Pause stops all processes of a guest. See engine.Pauser.
func (e *Engine) Pause(ctx context.Context, id string) error {
	return e.freeze(ctx, id, unix.SIGSTOP, "pause")
}

// Resume continues all processes of a guest. See engine.Pauser.
func (e *Engine) Resume(ctx context.Context, id string) error {
	return e.freeze(ctx, id, unix.SIGCONT, "resume")
}

func (e *Engine) freeze(ctx context.Context, id string, sig unix.Signal, verb string) error {
	h, err := e.set.Get(id)
	if err == nil {
		err = h.freeze(ctx, sig)
	}
	if err != nil {
		return fmt.Errorf("%s guest %q: %w", verb, id, err)
	}
	return nil
}

// Stats measures the resource usage of a guest. See engine.Statser.
func (e *Engine) Stats(ctx context.Context, id string) (engine.Stats, error) {
	h, err := e.set.Get(id)
	if err == nil && h.agentEnded() {
		err = engine.ErrGone
	}
	if err != nil {
		return engine.Stats{}, fmt.Errorf("stats of guest %q: %w", id, err)
	}
	return h.family.stats(), nil
}

// validate checks the spec and that its files exist.
func validate(ctx context.Context, s *engine.Spec) error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf(format+": %w", append(args, engine.ErrInvalid)...)
	}
	if err := s.Validate(); err != nil {
		return err
	}
	tree, err := s.Root.Unpack(ctx)
	if err != nil {
		return err
	}
	if tree.File != "" {
		return fmt.Errorf("root file %q: this engine has directories only: %w", tree.File, engine.ErrUnsupported)
	}
	if info, err := os.Stat(tree.Dir); err != nil || !info.IsDir() {
		return invalid("root %q is not a directory", tree.Dir)
	}
	for _, m := range append(append([]engine.Mount(nil), tree.Binds...), s.Mounts...) {
		if _, err := os.Stat(m.Host); m.Host != "" && err != nil {
			return invalid("mount of %q: %v", m.Host, err)
		}
	}
	if s.Agent.Image != nil {
		return fmt.Errorf("agent of image %s: %w", s.Agent.Image.Digest, engine.ErrUnsupported)
	}
	if info, err := os.Stat(s.Agent.Path); errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return invalid("agent %q is not a file", s.Agent.Path)
	}
	if len(s.Mounts) > 0 {
		return fmt.Errorf("volumes without isolation: %w", engine.ErrUnsupported)
	}
	return nil
}
