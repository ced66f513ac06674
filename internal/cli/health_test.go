package cli

import (
	"errors"
	"slices"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/pool"
)

// TestUnreadyReasons: what /ready says to everyone. The causes, with paths of this machine, are
// for the log only.
func TestUnreadyReasons(t *testing.T) {
	cause := errors.New("open /var/lib/glovebox/images/secret: permission denied")
	full := pool.ClassStats{Wanted: 2, Ready: 2}
	empty := pool.ClassStats{Wanted: 2}
	failing := pool.ClassStats{Wanted: 2, LastError: cause, Failed: 3}
	partly := pool.ClassStats{Wanted: 2, Ready: 1, LastError: cause, Failed: 1}
	for _, c := range []struct {
		name    string
		checked bool
		classes pool.Stats
		want    string // "" none
	}{
		{"before the check", false, pool.Stats{full, failing, partly}, "the health check is in progress (3 of 6 boxes)"},
		{"before the check, no pool", false, nil, "the health check is in progress (0 of 0 boxes)"},
		{"no pool", true, nil, ""},
		{"a full pool", true, pool.Stats{full, full}, ""},
		{"a pool that is being filled", true, pool.Stats{empty}, ""},
		{"one box is there", true, pool.Stats{partly}, ""},
		{"one kind works", true, pool.Stats{failing, full}, ""},
		{"none works", true, pool.Stats{failing, failing}, "no box can be created for the pool; see the server's log"},
	} {
		var want []string
		if c.want != "" {
			want = []string{c.want}
		}
		if got := unreadyReasons(c.checked, c.classes); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", c.name, got, want)
		}
	}
}

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
