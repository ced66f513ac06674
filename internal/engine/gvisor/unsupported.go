//go:build !(linux && (amd64 || arm64))

package gvisor

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
)

// Config is the configuration of the engine.
type Config struct {
	StateDir   string
	Log        *slog.Logger
	Boots      int
	SweepEvery time.Duration
	DebugDir   string
	Disk       hostdisk.Policy
}

// Engine exists on Linux only.
type Engine struct{ engine.Engine }

// Main does nothing here.
func Main() {}

// Enter returns engine.ErrUnsupported.
func Enter(bool) error { return unsupported() }

// Open returns engine.ErrUnsupported.
func Open(context.Context, Config) (*Engine, error) { return nil, unsupported() }

// Probe says that gVisor needs Linux.
func Probe(context.Context) []engine.Finding {
	return []engine.Finding{{
		Name: "gvisor", Level: engine.LevelFail, Detail: unsupported().Error(),
		Fix: "run glovebox on Linux (amd64 or arm64), for example in a virtual machine",
	}}
}

// Version returns nothing: gVisor is not linked in.
func Version() (pin string, date time.Time) { return "", time.Time{} }

func unsupported() error {
	return fmt.Errorf("gvisor runs on linux/amd64 and linux/arm64, this is %s/%s: %w", runtime.GOOS, runtime.GOARCH, engine.ErrUnsupported)
}
