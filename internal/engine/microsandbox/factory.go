package microsandbox

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/embed"
)

// Name is the name of the engine.
const Name = "microsandbox"

// Factory returns the factory of the engine.
func Factory() engine.Factory {
	return engine.Factory{
		Name:    Name,
		Version: func() (string, time.Time) { return Version(), time.Time{} },
		Probe:   Probe,
		Open: func(ctx context.Context, cfg engine.Config) (engine.Engine, error) {
			helper, err := embed.Install(filepath.Join(cfg.StateDir, "agent"))
			if err != nil {
				return nil, fmt.Errorf("install the helper: %w", err)
			}
			e, err := Open(ctx, Config{StateDir: cfg.StateDir, Helper: helper.Path, Log: cfg.Log, SweepEvery: cfg.SweepEvery})
			if err != nil {
				return nil, err // not a nil *Engine
			}
			return e, nil
		},
	}
}
