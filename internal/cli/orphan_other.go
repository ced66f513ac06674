//go:build !linux

package cli

import "log/slog"

// detachWhenOrphaned does nothing: no engine of this system executes the program again.
func detachWhenOrphaned(*slog.Logger) (abandoned <-chan struct{}, stop func()) {
	return nil, func() {}
}
