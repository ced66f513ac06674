//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

// TestProbeVersion_WarnsAfter120Days: doctor warns when the gVisor in the program is older
// than docs/threat-model.md allows.
func TestProbeVersion_WarnsAfter120Days(t *testing.T) {
	date := time.Date(2026, 9, 5, 3, 51, 2, 0, time.UTC)
	const day = 24 * time.Hour
	for days, want := range map[time.Duration]engine.Level{0: engine.LevelOK, 119: engine.LevelOK, 121: engine.LevelWarn, 1000: engine.LevelWarn} {
		if f := probeVersion("v0.0.0", date, date.Add(days*day)); f.Level != want || (f.Fix == "") != (want == engine.LevelOK) || !strings.Contains(f.Detail, fmt.Sprintf("%d days old", days)) {
			t.Errorf("after %d days: got %+v, want the level %v", days, f, want)
		}
	}
	for _, more := range []time.Duration{-time.Second, time.Second} {
		if f := probeVersion("v0.0.0", date, date.Add(120*day+more)); (f.Level == engine.LevelWarn) != (more > 0) {
			t.Errorf("after 120 days and %v: got %+v", more, f)
		}
	}
}
