package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// The text about a server that cannot start, or says nothing, tells what to do about it, as that of
// one whose program ends does.
func TestPrograms_ServerNeverAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		command     []string
		hideHost    bool
		begin, want string
	}{
		"no program":             {[]string{"/nonexistent/server"}, false, "start: ", "no such file or directory; the user sees the cause with: glovebox mcp tools --config x srv"},
		"a silent one":           {[]string{"sleep", "1000"}, false, "connect: ", "no answer within 1s; the user sees the cause with: glovebox mcp tools --config x srv"},
		"no program, elsewhere":  {[]string{"/nonexistent/server"}, true, "", "it failed, and the operator finds the cause in the log"},
		"a silent one elsewhere": {[]string{"sleep", "1000"}, true, "", "no answer in time, and the operator finds the cause in the log"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(t.TempDir(), mcpkit.Trusted, "srv")
			def := o.Servers.Config.Servers[0]
			def.Command, def.Args = mcpjson.Literal(c.command[0]), nil
			for _, arg := range c.command[1:] {
				def.Args = append(def.Args, mcpjson.Literal(arg))
			}
			o.Servers.Timeouts.Connect = time.Second
			o.HideHost, o.ToolsCommand = c.hideHost, func(server string) string { return "glovebox mcp tools --config x " + server }
			g, _ := register(t, o)
			t.Cleanup(func() { g.Close() })
			g.ServerTools(t.Context(), "srv")
			why := g.WhyUnavailable(t.Context(), "srv", "x")
			// The sentence may go on with how long ago the server was tried.
			if begin := `The server "srv" is not available: ` + c.begin; why == nil || !strings.HasPrefix(why.Text, begin) || strings.Count(why.Text, c.want) != 1 {
				t.Errorf("got %+v, want %s…%s", why, begin, c.want)
			}
		})
	}
}
