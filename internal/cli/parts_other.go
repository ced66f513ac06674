//go:build !(linux && (amd64 || arm64))

package cli

import (
	"errors"
	"log/slog"

	"github.com/glovebox-dev/glovebox/internal/config"
)

// Parts does nothing: no engine is linked in.
func Parts() {}

// finishTemplatesInBackground fails: without an engine there are no templates.
func finishTemplatesInBackground() error { return errors.ErrUnsupported }

// checkVolumes refuses nothing: there are no boxes.
func checkVolumes(*config.Config) error { return nil }

type scratch struct{ dirs []string }

func (*scratch) close() error { return nil }

// openScratch fails.
func openScratch(string, *slog.Logger) (*scratch, error) { return nil, errors.ErrUnsupported }
