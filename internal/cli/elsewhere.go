package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/image/remote"
	"github.com/glovebox-dev/glovebox/internal/cli/engines"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/guest/embed"
)

// openElsewhere completes the maker for boxes that run on other machines.
func (h *host) openElsewhere(ctx context.Context, cfg *config.Config, at *engines.Elsewhere, progress func(string)) (err error) {
	h.maker.Root, h.maker.Agent = at.Root, at.Agent
	h.maker.Agent.Args = []string{embed.Name}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.StartTimeout, fmt.Errorf("the box did not answer within %v (start-timeout): %w", cfg.StartTimeout, engine.ErrUnavailable))
	defer cancel()
	h.image, err = remote.Open(ctx, remote.Config{
		Maker: h.maker, Limits: box.Flavor(cfg.DefaultFlavor).Limits(), StateDir: cfg.StateDir, Place: engines.Place(h.engine), Progress: progress,
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, engine.ErrExhausted):
		return withHint(err, "the nodes or the quota of the namespace have no room for a box of the flavor %s; kubectl get pods and kubectl describe quota show what is in use", cfg.DefaultFlavor)
	}
	return explain(err)
}
