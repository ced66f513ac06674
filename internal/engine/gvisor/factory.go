package gvisor

import (
	"context"

	"github.com/glovebox-dev/glovebox/engine"
)

// Factory returns the factory of the engine.
func Factory() engine.Factory {
	return engine.Factory{
		Name:    "gvisor",
		Version: Version,
		Main:    Main,
		Enter:   Enter,
		Probe:   Probe,
		Open: func(ctx context.Context, cfg engine.Config) (engine.Engine, error) {
			e, err := Open(ctx, Config{StateDir: cfg.StateDir, Log: cfg.Log, SweepEvery: cfg.SweepEvery, Disk: cfg.Disk})
			if err != nil {
				return nil, err // not a nil *Engine
			}
			return e, nil
		},
	}
}
