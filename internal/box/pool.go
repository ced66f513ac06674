package box

import (
	"context"
	"log/slog"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/box/pool"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// checkTimeout bounds the check of a new machine for the pool: an empty cell
	// takes milliseconds.
	checkTimeout = 30 * time.Second
	// buildTimeout bounds the building of a template on a busy host: a boot and
	// the imports of large libraries.
	buildTimeout = 5 * time.Minute
)

// start begins to build the templates of the default flavor and to fill the pool from
// them. waitForCapacity is as pool.Config.Yield.
func (f *machineFactory) start(waitForCapacity func(context.Context) error) {
	if f.parts.Templates == nil {
		return
	}
	var classes []pool.Class
	for _, t := range []Interpreter{InterpreterPython, InterpreterNode} {
		if f.parts.Machines.Interpreters[t.Language()] != "" {
			classes = append(classes, pool.Class{Interpreter: string(t), Flavor: string(f.cfg().DefaultFlavor)})
		}
	}
	if f.cfg().PoolSize > 0 && f.parts.Volumes == nil { // machines of a pool have no owner
		f.pool = pool.New(pool.Config{
			Size: f.cfg().PoolSize, MaxAge: f.cfg().PoolMaxAge, Make: f.poolInstance, Yield: waitForCapacity,
			Pause: f.parts.Machines.Pauses(), Log: f.log, Now: f.now,
		})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range classes {
		f.builds[c] = true
	}
	f.wg.Go(func() {
		defer close(f.filling)
		for _, c := range classes {
			f.buildNow(c)
		}
		if f.pool != nil && f.base.Err() == nil {
			f.pool.Start(classes)
		}
	})
}

// close begins no builds any more and ends the pool. ctx bounds the wait for its
// machines.
func (f *machineFactory) close(ctx context.Context) error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	if f.pool == nil {
		return nil
	}
	return f.pool.Close(ctx)
}

// building reports whether templates are being built.
func (f *machineFactory) building() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.builds) > 0
}

// poolReady waits until the pool is full.
func (f *machineFactory) poolReady(ctx context.Context) error {
	if f.pool == nil {
		return nil
	}
	select {
	case <-f.filling:
		return f.pool.Ready(ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// poolStats describes the pool; nil if there is none.
func (f *machineFactory) poolStats() pool.Stats {
	if f.pool == nil {
		return nil
	}
	return f.pool.Stats()
}

// build builds the template of a class in the background, once.
func (f *machineFactory) build(c pool.Class) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.builds[c] || f.closed {
		return
	}
	f.builds[c] = true
	f.wg.Go(func() { f.buildNow(c) })
}

// buildNow builds the template of a class, if it is missing. After a failure, the
// next box that misses it tries again.
func (f *machineFactory) buildNow(c pool.Class) {
	ctx, cancel := context.WithTimeout(f.base, buildTimeout)
	defer cancel()
	_, err := f.parts.Templates.Build(ctx, f.want(c), func(text string) {
		f.log.Info("template", logkey.Interpreter, c.Interpreter, logkey.Flavor, c.Flavor, logkey.Progress, text)
	})
	f.mu.Lock()
	delete(f.builds, c)
	again := f.unbuilt[c]
	f.unbuilt[c] = err != nil
	f.mu.Unlock()
	if err != nil && f.base.Err() == nil {
		level := slog.LevelWarn
		if again { // once is enough
			level = slog.LevelDebug
		}
		f.log.Log(ctx, level, "template not built; boxes are booted instead", logkey.Interpreter, c.Interpreter, logkey.Flavor, c.Flavor, logkey.Error, err)
	}
}

// poolInstance makes a machine for the pool, checked by a run.
func (f *machineFactory) poolInstance(ctx context.Context, c pool.Class) (*machine.Machine, error) {
	dirs, err := f.volumeChecks.find(ctx, f.parts.Machines.Volumes, slotPatience)
	if err != nil {
		return nil, err
	}
	mach, source, err := f.fresh(ctx, c, newGuestID(), f.parts.Machines)
	if err != nil {
		return nil, err
	}
	mach.VolumeDirs = dirs
	language := Interpreter(c.Interpreter).Language()
	if source == SourceBoot {
		err = mach.Start(ctx, language, nil)
	}
	if err == nil {
		err = mach.Prove(ctx, language, checkTimeout)
	}
	if err != nil {
		f.discard(mach)
		return nil, err
	}
	return mach, nil
}

// takeWarm takes a machine from the pool, nil if it has none. It ends those whose volumes are
// directories that others have replaced since: a box that wrote there would lose its files.
func (f *machineFactory) takeWarm(ctx context.Context, c pool.Class) (*machine.Machine, error) {
	now, err := f.volumeChecks.find(ctx, f.parts.Machines.Volumes, slotPatience)
	if err != nil {
		return nil, err
	}
	for {
		m := f.pool.Take(ctx, c)
		if m == nil || sameDirs(m.VolumeDirs, now) {
			return m, nil
		}
		f.log.Info("box of the pool ended: the directory of a volume is another one", logkey.Guest, m.ID)
		f.wg.Go(func() { f.discard(m) })
	}
}
