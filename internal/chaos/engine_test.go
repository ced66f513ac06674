//go:build linux && (amd64 || arm64) && !cgo

package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

// faultyEngine is an engine whose operations fail where faults are armed.
type faultyEngine struct {
	engine.Engine
	faults *faults
	broken *atomic.Pointer[broken]
}

var (
	_ engine.Pauser      = (*faultyEngine)(nil)
	_ engine.Statser     = (*faultyEngine)(nil)
	_ engine.Snapshotter = (*faultyEngine)(nil)
)

// Unwrap returns the real engine.
func (e *faultyEngine) Unwrap() engine.Engine { return e.Engine }

// ability returns an ability of the real engine, which has them all.
func ability[T any](e *faultyEngine) T {
	t, ok := engine.As[T](e.Engine)
	if !ok {
		panic(fmt.Sprintf("the engine lacks %T", *new(T)))
	}
	return t
}

func (e *faultyEngine) Create(ctx context.Context, id string, spec *engine.Spec) (engine.Guest, error) {
	return e.start(ctx, stageCreate, id, func() (engine.Guest, error) { return e.Engine.Create(ctx, id, spec) })
}

func (e *faultyEngine) Restore(ctx context.Context, id string, spec *engine.Spec, s engine.Snapshot) (engine.Guest, error) {
	return e.start(ctx, stageRestore, id, func() (engine.Guest, error) {
		return ability[engine.Snapshotter](e).Restore(ctx, id, spec, s)
	})
}

func (e *faultyEngine) start(ctx context.Context, stage stage, id string, boot func() (engine.Guest, error)) (engine.Guest, error) {
	if e.broken.Load().refuses {
		return nil, fmt.Errorf("broken on purpose: %w", engine.ErrExhausted)
	}
	var g engine.Guest
	err := e.faults.around(ctx, stage, id, func() (err error) {
		g, err = boot()
		return err
	})
	if err != nil {
		if g != nil { // the call had succeeded; its outcome is withheld
			destroyed, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			err = errors.Join(err, g.Destroy(destroyed))
		}
		return nil, err
	}
	if leak := e.broken.Load().atBoot; leak != nil {
		leak()
	}
	return &faultyGuest{Guest: g, engine: e}, nil
}

func (e *faultyEngine) Pause(ctx context.Context, id string) error {
	return e.faults.around(ctx, stagePause, id, func() error { return ability[engine.Pauser](e).Pause(ctx, id) })
}

func (e *faultyEngine) Resume(ctx context.Context, id string) error {
	return e.faults.around(ctx, stageResume, id, func() error { return ability[engine.Pauser](e).Resume(ctx, id) })
}

func (e *faultyEngine) Stats(ctx context.Context, id string) (s engine.Stats, err error) {
	err = e.faults.around(ctx, stageStats, id, func() error {
		s, err = ability[engine.Statser](e).Stats(ctx, id)
		return err
	})
	return s, err
}

func (e *faultyEngine) Snapshot(ctx context.Context, id, dir string) (ref string, err error) {
	written := false
	err = e.faults.around(ctx, stageSnapshot, id, func() error {
		ref, err = ability[engine.Snapshotter](e).Snapshot(ctx, id, dir)
		written = err == nil
		return err
	})
	if err != nil && written { // the contract: after an error, dir is empty
		err = errors.Join(err, empty(dir))
	}
	return ref, err
}

func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, entry.Name())))
	}
	return err
}

func (e *faultyEngine) InspectSnapshot(ctx context.Context, s engine.Snapshot) (engine.SnapshotInfo, error) {
	return ability[engine.Snapshotter](e).InspectSnapshot(ctx, s)
}

func (e *faultyEngine) CheckSnapshot(ctx context.Context, spec *engine.Spec, s engine.Snapshot) error {
	return ability[engine.Snapshotter](e).CheckSnapshot(ctx, spec, s)
}

func (e *faultyEngine) RemoveSnapshot(ctx context.Context, s engine.Snapshot) error {
	return ability[engine.Snapshotter](e).RemoveSnapshot(ctx, s)
}

// faultyGuest is a guest whose agent may answer slowly or not at all.
type faultyGuest struct {
	engine.Guest
	engine *faultyEngine
}

func (g *faultyGuest) Dial(ctx context.Context) (conn io.ReadWriteCloser, err error) {
	s := &faultyStream{closed: make(chan struct{})}
	err = g.engine.faults.around(ctx, stageDial, g.ID(), func() error {
		s.ReadWriteCloser, err = g.Guest.Dial(ctx)
		return err
	})
	if err != nil {
		if s.ReadWriteCloser != nil {
			err = errors.Join(err, s.ReadWriteCloser.Close())
		}
		return nil, err
	}
	g.engine.faults.dialled(g.ID(), s)
	return s, nil
}

func (g *faultyGuest) Destroy(ctx context.Context) error {
	if g.engine.broken.Load().immortal {
		return nil
	}
	// An engine always destroys: only delays and signals are aimed at this stage.
	err := g.engine.faults.around(ctx, stageDestroy, g.ID(), func() error { return g.Guest.Destroy(ctx) })
	g.engine.faults.destroyed(g.ID())
	return err
}

// The conditions of an agent.
const (
	agentWell int32 = iota
	agentSlow       // each read takes longer
	agentDead       // reads return nothing
)

// faultyStream is the stream to an agent.
type faultyStream struct {
	io.ReadWriteCloser
	condition atomic.Int32
	delay     atomic.Int64 // of each read of a slow agent, in ns
	once      sync.Once
	closed    chan struct{}
}

func (s *faultyStream) Read(p []byte) (int, error) {
	n, err := s.ReadWriteCloser.Read(p)
	switch s.condition.Load() {
	case agentSlow:
		select {
		case <-time.After(time.Duration(s.delay.Load())):
		case <-s.closed:
		}
	case agentDead:
		<-s.closed
		return 0, os.ErrClosed
	}
	return n, err
}

func (s *faultyStream) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.ReadWriteCloser.Close()
}
