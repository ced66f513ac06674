package engines

import (
	"context"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
)

// factory returns an engine that a host with the findings probes.
func factory(name string, levels ...engine.Level) engine.Factory {
	return engine.Factory{Name: name, Probe: func(context.Context) (list []engine.Finding) {
		for _, l := range levels {
			list = append(list, engine.Finding{Name: "x", Level: l})
		}
		return list
	}}
}

func TestChoose_PrefersTheFirstEngineThatTheHostCanRun(t *testing.T) {
	works := factory("works", engine.LevelOK)
	weaker := factory("weaker", engine.LevelOK, engine.LevelWarn)
	fails := factory("fails", engine.LevelOK, engine.LevelFail)
	unprobed := engine.Factory{Name: "unprobed"} // its Probe would panic
	for name, c := range map[string]struct {
		list    []engine.Factory
		entered string
		want    string
	}{
		"the first":               {[]engine.Factory{works, weaker}, "", "works"},
		"a warning is no failure": {[]engine.Factory{fails, weaker, works}, "", "weaker"},
		"none":                    {[]engine.Factory{fails, fails}, "", "fails"},
		"the only one":            {[]engine.Factory{unprobed}, "", "unprobed"},
		"the one entered":         {[]engine.Factory{works, unprobed}, "unprobed", "unprobed"},
		"an unknown one entered":  {[]engine.Factory{works, fails}, "missing", "works"},
	} {
		if got := choose(t.Context(), c.list, c.entered); got.Name != c.want {
			t.Errorf("%s: got %s, want %s", name, got.Name, c.want)
		}
	}
}

func TestVersion_OfAnUnknownEngine(t *testing.T) {
	if v, _, ok := Version("missing"); ok || v != "" {
		t.Errorf("got %q, %t", v, ok)
	}
}

func TestFactories_AreComplete(t *testing.T) {
	seen := make(map[string]bool)
	for _, f := range all {
		if f.Name == "" || seen[f.Name] || f.Version == nil || f.Probe == nil || f.Open == nil {
			t.Errorf("engine %q has no unique name, or lacks Version, Probe or Open", f.Name)
		}
		seen[f.Name] = true
	}
}
