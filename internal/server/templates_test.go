package server

import (
	"fmt"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// Tools list the named templates of their owner, and not those of other owners, with and without a network,
// in each era of the protocol.
func TestTemplates_AreListed(t *testing.T) {
	const listed = `template of a new session: data (python: polars and duckdb), web (javascript)"`
	for _, online := range []bool{false, true} {
		p := newPeople(t)
		_, url := serve(t, func(o *Options) {
			o.Auth = p.v
			if online {
				o.Network = func(box.Owner) tools.Network { return tools.Network{Allowed: []string{"npm"}} }
			}
			o.Templates = func(owner box.Owner) []tools.Template {
				if owner == "token alice" {
					return []tools.Template{{Name: "data", Language: "python", Description: "polars and duckdb"}, {Name: "web", Language: "javascript"}}
				}
				return nil
			}
		})
		for owner, want := range map[string]bool{"alice": true, "bob": false} {
			if _, body := do(t, "POST", url, p.as(owner), rpc("tools/list", "{}")); strings.Contains(body, listed) != want || strings.Contains(body, "data (") != want {
				t.Errorf("network %t: tools/list of %s has the templates: %t, want %t", online, owner, !want, want)
			}
		}
	}
	_, url := serve(t, func(o *Options) {
		withCode(o, "")
		o.Templates = func(box.Owner) []tools.Template { return []tools.Template{{Name: "data", Language: "python"}} }
	})
	for _, version := range []string{"2025-06-18", revision.Modern} {
		list, err := dial(t, url, version).ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, tool := range list.Tools {
			if strings.Contains(fmt.Sprint(tool.InputSchema), ": data (python)") {
				found = append(found, tool.Name)
			}
		}
		if got := strings.Join(found, " "); got != "create_context execute_code" {
			t.Errorf("%s: %q list the templates, want create_context and execute_code", version, got)
		}
	}
}
