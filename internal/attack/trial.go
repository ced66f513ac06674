//go:build linux

package attack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
)

// errSkip is the error of an attack that this host or privilege mode cannot run.
type errSkip struct{ why string }

func (e errSkip) Error() string { return "skipped: " + e.why }

// skip returns the error that makes the outcome of an attack skipped.
func skip(format string, args ...any) error { return errSkip{fmt.Sprintf(format, args...)} }

// trial is one run of one attack.
type trial struct {
	*rig
	attack  *Attack
	nonce   string // unguessable; part of every name that the attack uses
	began   time.Time
	allowed time.Duration // how long an answer may take

	mu     sync.Mutex
	breaks []string // guarded by mu; what succeeded and should not have
	delays int      // guarded by mu; how many of breaks are about time only
	tries  int      // guarded by mu; attempts that were refused or contained
	ends   []string // guarded by mu; how boxes ended that were meant to live
	cells  []*cell  // guarded by mu
	took   int64    // guarded by mu; MiB of the host's memory
}

// broke records that something succeeded that should not have.
func (t *trial) broke(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.breaks) < maxBreaks {
		t.breaks = append(t.breaks, printable(fmt.Sprintf(format, args...)))
	}
}

// isBroken reports whether something succeeded that should not have.
func (t *trial) isBroken() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.breaks) > 0
}

// late is broke for what took too long, which another program may have caused.
func (t *trial) late(format string, args ...any) {
	t.mu.Lock()
	t.delays++
	t.mu.Unlock()
	t.broke(format, args...)
}

// maxBreaks bounds what a result lists.
const maxBreaks = 20

// held records n attempts that were refused or contained.
func (t *trial) held(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tries += n
}

// check records an attempt that must hold.
func (t *trial) check(holds bool, format string, args ...any) {
	if holds {
		t.held(1)
	} else {
		t.broke(format, args...)
	}
}

// shape describes a box of an attack. The zero value is a small box.
type shape struct {
	limits  engine.Limits  // default: small
	volumes []engine.Mount // in place of the maker's
	asAgent bool           // code runs with the privileges of the agent: it has been compromised
}

// small is the size of the boxes of attacks: large enough for an interpreter, and
// small enough that an attack which breaks a limit does not harm the host.
var small = engine.Limits{CPUs: 1, MemoryMB: 192, DiskMB: 96, PIDs: 48}

// boot starts a fresh box. The judge examines it after the attack and destroys it.
func (t *trial) boot(ctx context.Context, s shape) (*cell, error) {
	k := t.maker(s)
	limits := s.limits
	if limits == (engine.Limits{}) {
		limits = small
	}
	given := limits
	if t.cfg.weaken != nil {
		given = t.cfg.weaken(limits)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, bootTimeout, fmt.Errorf("the box did not boot within %v", bootTimeout))
	defer cancel()
	id := "attack-" + t.nonce + "-" + fmt.Sprint(len(t.boxes()))
	m, err := k.Boot(ctx, id, given)
	if err != nil {
		return nil, fmt.Errorf("boot a box: %w", err)
	}
	return t.adopt(m, limits), nil
}

// bootTimeout bounds one boot: a hundred times its duration on an idle machine.
const bootTimeout = 60 * time.Second

// maker returns the maker of boxes of a shape.
func (t *trial) maker(s shape) *machine.Maker {
	k := *t.cfg.Maker
	if s.volumes != nil {
		k.Volumes = s.volumes
	}
	// Without isolation, the user of the agent is the one that runs the tests. As root, it could
	// damage the machine.
	if s.asAgent && (t.cfg.weaken == nil || !hostRoot()) {
		k.UID, k.GID = -1, -1
	}
	return &k
}

// adopt makes the judge examine a machine like one from boot.
func (t *trial) adopt(m *machine.Machine, limits engine.Limits) *cell {
	c := &cell{t: t, m: m, limits: limits}
	t.mu.Lock()
	t.cells = append(t.cells, c)
	t.mu.Unlock()
	return c
}

func (t *trial) boxes() []*cell {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]*cell(nil), t.cells...)
}

// script boots a box and runs a function of the class's guest script in it.
func script(function string, s shape) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		c, err := t.boot(ctx, s)
		if err != nil {
			return err
		}
		return c.attack(ctx, call{function: function})
	}
}

// fatal is script for a function that may be killed, or the box with it.
func fatal(function string) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		c, err := t.boot(ctx, shape{})
		if err != nil {
			return err
		}
		return c.attack(ctx, call{function: function, mayDie: true})
	}
}

// result judges the trial. err is the error of its run.
func (t *trial) result(err error) Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := Result{
		ID: t.attack.ID(), Class: t.attack.Class, Name: t.attack.Name, Claim: t.attack.Claim,
		Outcome: Held, Attempts: t.tries + len(t.breaks), Broken: t.breaks, Boxes: t.ends,
		HostMemoryMB: t.took, Milliseconds: time.Since(t.began).Milliseconds(),
	}
	var skipped errSkip
	switch {
	case len(t.breaks) > 0:
		r.Outcome = Broken
		r.onlyLate = t.delays >= len(t.breaks)
	case errors.As(err, &skipped):
		r.Outcome, r.Why = Skipped, skipped.why
	case err != nil:
		r.Outcome, r.Why = Failed, printable(err.Error())
	case t.tries == 0:
		r.Outcome, r.Why = Failed, "the attack attempted nothing"
	}
	return r
}

// newNonce returns a random word of [a-z0-9].
func newNonce() string { return strings.ToLower(rand.Text()[:12]) }

// printable replaces control characters: text from boxes must not control the
// terminal.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	return strings.ToValidUTF8(strings.Join(strings.Fields(s), " "), "\uFFFD")
}

// maxText bounds one line of a result.
const maxText = 400
