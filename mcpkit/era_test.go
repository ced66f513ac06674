package mcpkit

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/revision"
)

func TestD7_Era_LegacyServers(t *testing.T) {
	for _, kind := range []string{"legacy", "silent", "dies", "wrongids", "floods"} {
		t.Run(kind, func(t *testing.T) {
			eras := OpenEras(filepath.Join(t.TempDir(), "eras.json"))
			def := program("srv", kind)
			s := session(t, manager(t, Options{Eras: eras}, def), "srv")
			wantCall(t, s, "any", nil, "odd")
			if got := eras.lookup(def.Hash()); got != Legacy {
				t.Errorf("remembered %q, want legacy", got)
			}
			s = session(t, manager(t, Options{Eras: eras}, def), "srv")
			wantCall(t, s, "any", nil, "odd")
		})
	}
}

// A modern server that starts slowly, as npx does, is not remembered as legacy. Which
// of the two requests it answers first does not matter.
func TestD7_Era_SlowModernServer(t *testing.T) {
	for _, kind := range []string{"slow", "late"} {
		t.Run(kind, func(t *testing.T) {
			eras := OpenEras(filepath.Join(t.TempDir(), "eras.json"))
			def := program("srv", kind)
			m := manager(t, Options{Eras: eras, Limits: Limits{Connect: time.Minute}}, def)
			s := session(t, m, "srv")
			info, err := s.Initialize(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			legacy := info.ProtocolVersion != revision.Modern
			if kind == "late" && !legacy {
				t.Errorf("got %+v", info)
			}
			if _, err := call(t, s, "echo", map[string]any{"text": "x"}); err != nil {
				t.Error(err)
			}
			m.Release("srv")
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if got := eras.lookup(def.Hash()); got != Modern {
				t.Errorf("remembered %q, want modern", got)
			}
			if kind == "slow" {
				wantCall(t, session(t, m, "srv"), "echo", map[string]any{"text": "x"}, "x")
			}
		})
	}
}
