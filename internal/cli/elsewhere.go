package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/image/remote"
	"github.com/glovebox-dev/glovebox/internal/cli/engines"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/guest/embed"
)

// selectEngine applies the settings of the engine, and refuses those that its boxes cannot
// have.
func selectEngine(cfg *config.Config) error {
	if cfg.Engine == config.EngineAuto {
		return nil
	}
	err := engines.Select(cfg.Engine, engines.Options{
		Image:       cfg.Image,
		KubeContext: cfg.KubeContext, KubeNamespace: cfg.KubeNamespace, KubeRuntimeClass: cfg.KubeRuntimeClass, KubeHelperImage: cfg.KubeHelperImage,
	})
	if err != nil {
		return withHint(&config.Error{Text: err.Error()}, "docs/kubernetes.md explains the settings of the engine")
	}
	if engines.BoxesElsewhere() == nil {
		return nil
	}
	return checkElsewhere(cfg)
}

// checkElsewhere refuses settings that need boxes on this machine.
func checkElsewhere(cfg *config.Config) error {
	if len(cfg.Volumes) > 0 {
		err := &config.Error{Text: fmt.Sprintf("share volume %s: boxes of the engine %s run on other machines, which do not have this directory", cfg.Volumes[0].Host, cfg.Engine)}
		return withHint(err, "unset MSB_SHARED_VOLUME_PATH and --volume, or ignore them with --enable-volumes=false; the file tools copy files into a box")
	}
	if slices.Contains(cfg.Toolsets, "snapshots") {
		err := &config.Error{Text: fmt.Sprintf("offer the toolset snapshots: the engine %s has none", cfg.Engine)}
		return withHint(err, "choose other groups with --toolset, such as sessions or contexts")
	}
	return nil
}

// openElsewhere completes the maker for boxes that run on other machines.
func (h *host) openElsewhere(ctx context.Context, cfg *config.Config, at *engines.Elsewhere, progress func(string)) (err error) {
	h.maker.Root, h.maker.Agent = at.Root, at.Agent
	h.maker.Agent.Args = []string{embed.Name}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.StartTimeout, fmt.Errorf("the box did not answer within %v (start-timeout)", cfg.StartTimeout))
	defer cancel()
	h.image, err = remote.Open(ctx, remote.Config{
		Maker: h.maker, Limits: box.Flavor(cfg.DefaultFlavor).Limits(), StateDir: cfg.StateDir, Progress: progress,
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, engine.ErrExhausted):
		return withHint(err, "the nodes or the quota of the namespace have no room for a box of the flavor %s; kubectl get pods and kubectl describe quota show what is in use", cfg.DefaultFlavor)
	}
	return explain(err)
}
