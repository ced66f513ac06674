package box

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/box/pool"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// proofTimeout bounds the proof of a new machine for the pool: an empty cell
	// takes milliseconds.
	proofTimeout = 30 * time.Second
	// buildTimeout bounds the building of a template on a busy host: a boot and
	// the imports of large libraries.
	buildTimeout = 5 * time.Minute
	// yieldPause is between two looks whether the pool may go on.
	yieldPause = 20 * time.Millisecond
)

// startPool begins to build the templates of the default flavor and to fill the
// pool from them.
func (m *Manager) startPool() {
	if m.parts.Templates == nil {
		return
	}
	var classes []pool.Class
	for _, t := range []Template{TemplatePython, TemplateNode} {
		if m.parts.Machines.Interpreters[t.Language()] != "" {
			classes = append(classes, pool.Class{Template: string(t), Flavor: string(m.cfg().DefaultFlavor)})
		}
	}
	if m.cfg().PoolSize > 0 {
		m.pool = pool.New(pool.Config{
			Size: m.cfg().PoolSize, MaxAge: m.cfg().PoolMaxAge, Make: m.poolInstance, Yield: m.waitForCapacity,
			Pause: m.parts.Machines.Pauses(), Log: m.log, Now: m.now,
		})
	}
	for _, c := range classes {
		m.builds[c] = true
	}
	m.wg.Go(func() {
		defer close(m.filling)
		for _, c := range classes {
			m.buildNow(c)
		}
		if m.pool != nil && m.base.Err() == nil {
			m.pool.Start(classes)
		}
	})
}

// Building reports whether templates are being built.
func (m *Manager) Building() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.builds) > 0
}

// Ready waits until the pool is full, every machine in it proved by a run. The
// error says what cannot be made. Without a pool it returns at once.
func (m *Manager) Ready(ctx context.Context) error {
	if m.pool == nil {
		return nil
	}
	select {
	case <-m.filling:
		return m.pool.Ready(ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Pool says what the pool has; nil if there is none.
func (m *Manager) Pool() pool.Stats {
	if m.pool == nil {
		return nil
	}
	return m.pool.Stats()
}

// build builds the template of a class in the background, once.
func (m *Manager) build(c pool.Class) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.builds[c] || m.phase != phaseOpen {
		return
	}
	m.builds[c] = true
	m.wg.Go(func() { m.buildNow(c) })
}

// buildNow builds the template of a class, if it is missing. It may be tried
// again after a failure, by the next box that misses it.
func (m *Manager) buildNow(c pool.Class) {
	ctx, cancel := context.WithTimeout(m.base, buildTimeout)
	defer cancel()
	_, err := m.parts.Templates.Build(ctx, m.want(c), func(text string) {
		m.log.Info("template", logkey.Template, c.Template, logkey.Flavor, c.Flavor, logkey.Progress, text)
	})
	m.mu.Lock()
	delete(m.builds, c)
	again := m.unbuilt[c]
	m.unbuilt[c] = err != nil
	m.mu.Unlock()
	if err != nil && m.base.Err() == nil {
		level := slog.LevelWarn
		if again { // once is enough
			level = slog.LevelDebug
		}
		m.log.Log(ctx, level, "template not built; boxes are booted instead", logkey.Template, c.Template, logkey.Flavor, c.Flavor, logkey.Error, err)
	}
}

// member makes a machine for the pool.
func (m *Manager) poolInstance(ctx context.Context, c pool.Class) (*machine.Machine, error) {
	mach, source, err := m.fresh(ctx, c, "box-"+uuid.NewString())
	if err != nil {
		return nil, err
	}
	language := Template(c.Template).Language()
	if source == SourceBoot {
		err = mach.Start(ctx, language, nil)
	}
	if err == nil {
		err = mach.Prove(ctx, language, proofTimeout)
	}
	if err != nil {
		m.discard(mach)
		return nil, err
	}
	return mach, nil
}

// yield waits until making a machine for the pool takes nothing from anybody: no
// box is being made and there is memory for one more.
func (m *Manager) waitForCapacity(ctx context.Context) error {
	for m.starting.Load() > 0 || m.tight() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for room for the pool: %w", context.Cause(ctx))
		case <-time.After(yieldPause):
		}
	}
	return nil
}
