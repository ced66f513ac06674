package cli

import (
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box"
)

// A limit reached by idle boxes is not a warning: they are evicted on demand.
func TestBoxLimits(t *testing.T) {
	full := func(state box.State) *box.Stats {
		return &box.Stats{
			Sessions: 10, MaxSessions: 10, Contexts: 0, MaxContexts: 50, MemoryMB: 10 << 10, MaxMemoryMB: 10 << 10,
			Boxes: map[box.Class]int{{State: state, Kind: box.KindSession, Flavor: box.FlavorSmall}: 10},
		}
	}
	for _, test := range []struct {
		state    box.State
		eviction bool
		warn     bool
		text     string
	}{
		{box.StatePaused, true, false, "10 of 10, 10 idle"},
		{box.StateReady, true, false, "10 of 10, 10 idle"},
		{box.StateRunning, true, true, "10 of 10"},
		{box.StatePaused, false, true, "10 of 10"},
	} {
		limits := boxLimits(full(test.state), test.eviction)
		sessions, contexts, memory := limits[0], limits[1], limits[2]
		if sessions.Bar().Warn != test.warn || memory.Bar().Warn != test.warn || sessions.Text != test.text || contexts.Bar().Warn {
			t.Errorf("%s, eviction %t: got %+v, want warning %t", test.state, test.eviction, limits, test.warn)
		}
	}
}
