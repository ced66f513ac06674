//go:build linux

package microsandbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/glovebox-dev/glovebox/engine"
)

// Pause stops the virtual processors of a guest. See engine.Pauser.
func (e *Engine) Pause(ctx context.Context, id string) error {
	return e.setPaused(ctx, id, "pause", paused)
}

// Resume lets a paused guest run again. See engine.Pauser.
func (e *Engine) Resume(ctx context.Context, id string) error {
	return e.setPaused(ctx, id, "resume", running)
}

func (e *Engine) setPaused(ctx context.Context, id, command, want string) error {
	g, err := e.set.Get(id)
	if err == nil {
		err = g.setPaused(ctx, command, want)
	}
	if err != nil {
		return fmt.Errorf("%s guest %q: %w", command, id, err)
	}
	return nil
}

// setPaused runs a command of msb after which the sandbox has the wanted state. The
// command is not interrupted: the state would be unknown.
func (g *guest) setPaused(ctx context.Context, command, want string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	select {
	case g.pausing <- struct{}{}:
		defer func() { <-g.pausing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := g.lost(); err != nil {
		return err
	}
	_, err := g.e.msb.brief(command, "--quiet", g.name)
	if err == nil {
		return nil
	}
	// A sandbox that has the state already makes the command fail.
	s, serr := g.status(context.Background())
	switch {
	case serr == nil && s.Status == want:
		return nil
	case g.lost() != nil || says(serr, notFound):
		return engine.ErrGone
	}
	return unavailable(errors.Join(err, serr))
}
