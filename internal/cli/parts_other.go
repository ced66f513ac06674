//go:build !(linux && (amd64 || arm64))

package cli

import (
	"errors"
	"log/slog"
)

// Parts does nothing: no engine is linked in.
func Parts() {}

// finishTemplatesInBackground fails: without an engine there are no templates.
func finishTemplatesInBackground() error { return errors.ErrUnsupported }

type scratch struct{ dirs []string }

func (*scratch) close() error { return nil }

// openScratch fails.
func openScratch(string, *slog.Logger) (*scratch, error) { return nil, errors.ErrUnsupported }
