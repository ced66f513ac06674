package box

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// env is what all parts of a Manager share.
type env struct {
	config          atomic.Pointer[Config] // replaced as a whole
	parts           Parts
	log             *slog.Logger
	now             func() time.Time
	warnUnreachable rate.Sometimes // of warnings that boxes of other servers are not found
	// These are the constants answerGrace, kernelStart and powerTimeout, except in tests.
	answerGrace, kernelStart, resumeTimeout time.Duration

	base context.Context // of everything that goroutines of the Manager do
	end  context.CancelCauseFunc
	wg   sync.WaitGroup // added to only while phase is not closed, or by a goroutine in it
}

func newEnv(cfg Config, parts Parts) *env {
	e := &env{warnUnreachable: rate.Sometimes{Interval: unseenInterval}, parts: parts, log: parts.Log, now: parts.Now, answerGrace: answerGrace, kernelStart: kernelStart, resumeTimeout: powerTimeout}
	e.config.Store(&cfg)
	if parts.Machines == nil {
		e.parts.Machines = &machine.Maker{}
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.now == nil {
		e.now = time.Now
	}
	e.base, e.end = context.WithCancelCause(context.Background())
	return e
}

// cfg returns the current configuration, which must not be changed.
func (e *env) cfg() *Config { return e.config.Load() }

// reconfigure replaces the configuration, except for what was prepared at the start.
func (e *env) reconfigure(cfg Config) error {
	old := e.cfg()
	cfg.PoolSize, cfg.PoolMaxAge, cfg.Preload, cfg.DefaultFlavor = old.PoolSize, old.PoolMaxAge, old.Preload, old.DefaultFlavor
	cfg.CleanupInterval, cfg.PauseAfter, cfg.QueueLen, cfg.ParallelCalls = old.CleanupInterval, old.PauseAfter, old.QueueLen, old.ParallelCalls
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("reconfigure boxes: %w", err)
	}
	e.config.Store(&cfg)
	return nil
}

// hibernates reports whether boxes are written to disk when they leave memory.
func (e *env) hibernates() bool {
	return e.parts.Snapshots != nil && e.parts.Machines.Snapshots()
}

// observe passes an event to Parts.Observe. It must be called without locks.
func (e *env) observe(b *Box, what EventType, source Source, took time.Duration, failed bool) {
	if e.parts.Observe != nil {
		e.parts.Observe(Event{Type: what, Kind: b.key.kind, Flavor: b.flavor, Source: source, Took: took, Failed: failed})
	}
}

// discard closes a machine, and waits for that.
func (e *env) discard(mach *machine.Machine) {
	ctx, cancel := context.WithTimeout(context.Background(), destroyTimeout)
	defer cancel()
	if err := mach.Close(ctx); err != nil {
		// Nothing more can be done here; the engine keeps trying.
		e.log.Error("box was not freed in time", logkey.Guest, mach.ID, logkey.Error, err)
	}
}

func (e *env) orDefault(f Flavor) Flavor {
	if f == "" {
		return e.cfg().DefaultFlavor
	}
	return f
}

// signal wakes the waiters for a change. Its user guards it with a mutex.
type signal struct{ ch chan struct{} }

// wait returns a channel that the next broadcast closes.
func (s *signal) wait() <-chan struct{} {
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

func (s *signal) broadcast() {
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}
