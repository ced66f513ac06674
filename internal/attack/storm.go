//go:build linux

package attack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

func stormClass() class {
	timed := func(name, claim, function string) Attack {
		return Attack{Name: name, Claim: claim, Alone: true, run: storm(function)}
	}
	calm := func(what string) string {
		return "the host and the neighbour answer, and the box is paused and destroyed in time, during " + what
	}
	return class{
		name:  "storm",
		about: "A box keeps its kernel and the host's processors busy. Pausing, storing and destroying it stay quick.",
		attacks: []Attack{
			timed("spin", calm("busy loops with raised priority"), "spin"),
			timed("yields", calm("yields"), "yields"),
			timed("signals", calm("signals between processes"), "signals"),
			timed("futexes", calm("futex waits and wakes"), "futexes"),
			timed("ptrace", calm("single steps with ptrace"), "ptrace"),
			timed("mremap", calm("growing and shrinking mappings"), "mremaps"),
			timed("munmap", calm("mapping and unmapping"), "unmaps"),
			timed("forks", calm("forks"), "forks"),
			timed("fork-bomb", calm("a fork bomb"), "fork_bomb"),
			timed("execs", calm("program starts"), "execs"),
			timed("threads", calm("threads that start and end"), "thread_storm"),
			timed("faults", calm("invalid memory accesses"), "faults"),
			timed("timers", calm("timers of ten microseconds"), "alarms"),
			timed("ping-pong", calm("messages between processes"), "ping_pong"),
			timed("proc-reads", calm("reads of everything in /proc"), "proc_reads"),
			timed("file-churn", calm("files that are created, synced and removed"), "file_churn"),
			timed("busy-directory", calm("lists of a large directory"), "busy_directory"),
			timed("poll", calm("polls of many descriptors"), "poll_storm"),
			{Name: "stopped-processes", Claim: "processes that stop themselves or ignore signals end with the box", run: storm("stopped")},
			{Name: "daemons", Claim: "daemons that hold the output open neither delay the call nor outlive the box", run: storm("daemons")},
			{Name: "zombies", Claim: "zombie processes do not keep the next command from starting", run: storm("zombies")},
			{Name: "output-flood", Claim: "endless output without newlines is kept within bounds", Alone: true, run: storm("output_flood")},
			{Name: "output-drip", Claim: "endless output in single bytes is kept within bounds", Alone: true, run: storm("output_drip")},
			{Name: "deep-tree", Claim: "a tree of directories thousands of levels deep does not block the box", run: storm("deep_tree")},
		},
	}
}

const (
	// stormSeconds is how long a storm lasts.
	stormSeconds = 2.5
	stormTimeout = 8 * time.Second
	// pauseTime and snapshotTime are how long pausing and storing a small box may
	// take during a storm.
	pauseTime    = 5 * time.Second
	snapshotTime = 15 * time.Second
)

// storm runs a function of the class's script and meanwhile pauses, resumes and
// stores the box, which it then destroys in the middle of the storm.
func storm(function string) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		c, err := t.boot(ctx, shape{})
		if err != nil {
			return err
		}
		done := make(chan error, 1)
		go func() {
			done <- c.attack(ctx, call{function: function, mayDie: true, args: map[string]any{"seconds": stormSeconds}, timeout: stormTimeout})
		}()
		err = errors.Join(sleep(ctx, 700*time.Millisecond), t.interfere(ctx, c))
		return errors.Join(err, <-done)
	}
}

// interfere pauses, resumes and stores a box.
func (t *trial) interfere(ctx context.Context, c *cell) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, ok := engine.As[engine.Pauser](t.cfg.Maker.Engine); ok {
		if err := t.within(pauseTime, "pause the box", func() error { return c.m.Pause(ctx) }); err != nil {
			return err
		}
		if err := t.within(pauseTime, "resume the box", func() error { return c.m.Resume(ctx) }); err != nil {
			return err
		}
	}
	if !t.cfg.Maker.Snapshots() {
		return nil
	}
	dir := filepath.Join(t.cfg.Dir, "snapshot-"+t.nonce)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return t.within(snapshotTime, "store the box", func() error { return c.m.Snapshot(ctx, dir) })
}

// within records an operation that takes longer than allowed. A box that has died
// or cannot be stored in its state is no harness error.
func (t *trial) within(allowed time.Duration, what string, f func() error) error {
	start := time.Now()
	err := f()
	took := time.Since(start)
	if took > allowed {
		t.late("to %s took %v, more than %v", what, took.Round(time.Millisecond), allowed)
	} else {
		t.held(1)
	}
	if errors.Is(err, engine.ErrGone) || errors.Is(err, engine.ErrUnsupported) || errors.Is(err, engine.ErrExhausted) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// sleep waits unless ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
