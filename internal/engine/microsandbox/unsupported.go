//go:build !linux

package microsandbox

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

// Config is the configuration of the engine.
type Config struct {
	StateDir   string
	Helper     string
	Program    string
	SweepEvery time.Duration
	Log        *slog.Logger
}

// Engine exists on Linux only.
type Engine struct{ engine.Engine }

// Open returns engine.ErrUnsupported.
func Open(context.Context, Config) (*Engine, error) { return nil, unsupported() }

// Probe says that the engine needs Linux.
func Probe(context.Context) []engine.Finding {
	return []engine.Finding{{
		Name: "msb", Level: engine.LevelFail, Detail: unsupported().Error(),
		Fix: "run glovebox on Linux with /dev/kvm",
	}}
}

// Version returns nothing: there is no engine.
func Version() string { return "" }

func unsupported() error {
	return fmt.Errorf("the microsandbox engine runs on Linux, this is %s/%s: %w", runtime.GOOS, runtime.GOARCH, engine.ErrUnsupported)
}
