package server

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// The tools for code say that they fail while boxes have no interpreter, in each era of the
// protocol, with and without a network and code mode; the others do not change.
func TestCommandsOnly_Descriptions(t *testing.T) {
	const fails = "Fails here, unless you name a template with an interpreter: the image of this server has neither Python nor Node.js. Use execute_command. "
	for _, more := range []bool{false, true} {
		var none atomic.Bool
		_, url := serve(t, func(o *Options) {
			o.Toolsets, o.Image, o.CommandsOnly = []string{"all"}, true, none.Load
			if more {
				withCode(o, "")
				o.Network = func(box.Owner) tools.Network { return tools.Network{Allowed: []string{"npm"}} }
			}
		})
		for _, version := range []string{"2025-06-18", revision.Modern} {
			for _, is := range []bool{true, false} {
				none.Store(is)
				list, err := dial(t, url, version).ListTools(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				var found []string
				for _, tool := range list.Tools {
					if strings.HasPrefix(tool.Description, fails) {
						found = append(found, tool.Name)
					}
					if more && tool.Name == "execute_code" && !strings.Contains(tool.Description, "Network: npm; everything else is refused.") {
						t.Errorf("%s: the description of %s does not name the network: %q", version, tool.Name, tool.Description)
					}
				}
				want := ""
				if is {
					want = "create_context execute_code run_code"
				}
				if got := strings.Join(found, " "); got != want {
					t.Errorf("%s, commands only %t: %q say that they fail, want %q", version, is, got, want)
				}
			}
		}
	}
}
