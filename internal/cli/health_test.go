package cli

import (
	"testing"

	"github.com/glovebox-dev/glovebox/internal/sandbox"
)

// A limit that idle boxes have reached is no reason to worry: they give way.
func TestBoxLimits(t *testing.T) {
	full := func(state sandbox.State) *sandbox.Stats {
		return &sandbox.Stats{
			Sessions: 10, MaxSessions: 10, Contexts: 0, MaxContexts: 50, MemoryMB: 10 << 10, MaxMemoryMB: 10 << 10,
			Boxes: map[sandbox.BoxClass]int{{State: state, Kind: sandbox.KindSession, Flavor: sandbox.FlavorSmall}: 10},
		}
	}
	for _, test := range []struct {
		state    sandbox.State
		eviction bool
		warn     bool
		text     string
	}{
		{sandbox.StatePaused, true, false, "10 of 10, 10 idle"},
		{sandbox.StateReady, true, false, "10 of 10, 10 idle"},
		{sandbox.StateRunning, true, true, "10 of 10"},
		{sandbox.StatePaused, false, true, "10 of 10"},
	} {
		limits := boxLimits(full(test.state), test.eviction)
		sessions, contexts, memory := limits[0], limits[1], limits[2]
		if sessions.Bar().Warn != test.warn || memory.Bar().Warn != test.warn || sessions.Text != test.text || contexts.Bar().Warn {
			t.Errorf("%s, eviction %t: got %+v, want warning %t", test.state, test.eviction, limits, test.warn)
		}
	}
}
