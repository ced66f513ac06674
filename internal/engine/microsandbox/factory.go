package microsandbox

import (
	"context"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

// name is the name of the engine.
const name = "microsandbox"

// Factory returns the factory of the engine.
func Factory() engine.Factory {
	return engine.Factory{
		Name:    name,
		Version: func() (string, time.Time) { return Version(), time.Time{} },
		Probe:   Probe,
		Open: func(ctx context.Context, cfg engine.Config) (engine.Engine, error) {
			e, err := Open(ctx, Config{StateDir: cfg.StateDir, Log: cfg.Log, SweepEvery: cfg.SweepEvery})
			if err != nil {
				return nil, err // not a nil *Engine
			}
			return e, nil
		},
	}
}
