package server

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// online is in descriptions for the owners of TestNetwork_TextsAreByOwner.
const online = "Network: npm, *.example.org; everything else is refused."

// Descriptions and instructions say what the boxes of the caller can reach now, in each era
// of the protocol, with and without code mode.
func TestNetwork_TextsAreByOwner(t *testing.T) {
	for _, code := range []bool{false, true} {
		var off atomic.Bool
		_, url := serve(t, func(o *Options) {
			if code {
				withCode(o, "")
			}
			o.Toolsets = []string{"all"}
			o.Network = func(box.Owner) tools.Network {
				if off.Load() {
					return tools.Network{}
				}
				return tools.Network{Allowed: []string{"npm", "*.example.org"}}
			}
		})
		for _, version := range []string{"2025-06-18", revision.Modern} {
			off.Store(false)
			cs := dial(t, url, version)
			if got := cs.InitializeResult().Instructions; !strings.Contains(got, "user's machine. "+online) || strings.Contains(got, "no network") {
				t.Errorf("%s: instructions with a network: got %q", version, got)
			}
			list, err := cs.ListTools(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			changed := 0
			for _, tool := range list.Tools {
				if strings.Contains(tool.Description, "no network") {
					t.Errorf("%s: %s says that there is no network: %q", version, tool.Name, tool.Description)
				}
				if !strings.Contains(tool.Description, online) {
					continue
				}
				changed++
				if a := tool.Annotations; a == nil || a.OpenWorldHint == nil || !*a.OpenWorldHint {
					t.Errorf("%s: %s reaches other hosts, and has no open world", version, tool.Name)
				}
			}
			if changed != 3 {
				t.Errorf("%s: %d descriptions name the network, want 3", version, changed)
			}
			off.Store(true)
			cs = dial(t, url, version)
			if _, description := toolNames(t, cs); !strings.Contains(description, "There is no network: pip install") {
				t.Errorf("%s: after the network was switched off: got %q", version, description)
			}
			if got := cs.InitializeResult().Instructions; !strings.Contains(got, "and has no network.") {
				t.Errorf("%s: instructions without a network: got %q", version, got)
			}
		}
	}
	p := newPeople(t)
	_, url := serve(t, func(o *Options) {
		o.Auth = p.v
		o.Network = func(owner box.Owner) tools.Network {
			if owner == "token alice" {
				return tools.Network{Allowed: []string{"npm", "*.example.org"}}
			}
			return tools.Network{}
		}
	})
	for who, want := range map[string]bool{"alice": true, "bob": false} {
		if _, body := do(t, "POST", url, p.as(who), rpc("tools/list", "{}")); strings.Contains(body, online) != want {
			t.Errorf("%s: tools/list names the network: %t, want %t", who, !want, want)
		}
	}
}
