//go:build linux && (amd64 || arm64)

package gvisor

import (
	"runtime/debug"
	"strings"
	"time"
)

// Version returns the pinned version of gVisor that is linked in and the day it
// was made. The day is zero if the binary does not record it.
func Version() (pin string, date time.Time) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown", time.Time{}
	}
	for _, m := range info.Deps {
		if m.Path != "gvisor.dev/gvisor" {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		// v0.0.0-20260905035102-160fafc42237
		if parts := strings.Split(m.Version, "-"); len(parts) == 3 {
			date, _ = time.Parse("20060102150405", parts[1]) // zero if it is none
		}
		return m.Version, date
	}
	return "unknown", time.Time{}
}
