//go:build linux

package microsandbox

import (
	"context"
	"fmt"

	"github.com/glovebox-dev/glovebox/engine"
)

// Stats returns what msb measures of a guest. See engine.Statser.
func (e *Engine) Stats(ctx context.Context, id string) (engine.Stats, error) {
	g, err := e.set.Get(id)
	var s engine.Stats
	if err == nil {
		s, err = g.stats(ctx)
	}
	if err != nil {
		return s, fmt.Errorf("stats of guest %q: %w", id, err)
	}
	return s, nil
}

func (g *guest) stats(ctx context.Context) (engine.Stats, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, commandWait, errSlow)
	defer cancel()
	if err := g.lost(); err != nil {
		return engine.Stats{}, err
	}
	out, err := g.e.msb.run(ctx, nil, "metrics", "--format", "json", g.name)
	if err != nil {
		if g.lost() != nil {
			err = engine.ErrGone
		}
		return engine.Stats{}, unavailable(err)
	}
	return parseMetrics(out, g.name)
}
