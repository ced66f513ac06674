//go:build linux

package attack

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// Attacks on the client and the gateway hold, also where boxes cannot be isolated.
func TestAttacks_MCP(t *testing.T) {
	attacks, err := Select(All(), []string{"mcp-client", "gateway"})
	if err != nil {
		t.Fatal(err)
	}
	report, err := Run(t.Context(), unisolated(t, nil), attacks)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Results {
		if r.Outcome != Held && r.Why != "the run has no program to start" {
			t.Errorf("%s: %s %q %s", r.ID, r.Outcome, r.Broken, r.Why)
		}
	}
	if len(report.Left) > 0 {
		t.Errorf("left: %q", report.Left)
	}
}

// Attacks succeed against a client that approves and shows everything, and against a
// gateway that only merges lists; the judge notices.
func TestControl_MCP(t *testing.T) {
	approves := weakMCP{flags: []string{"--trust"}, options: func(o *mcpkit.Options) {
		o.Trust = func(context.Context, *mcpjson.Server) (mcpkit.Trust, error) { return mcpkit.Trusted, nil }
		o.Outbound = outbound.Policy{AllowHTTP: true, AllowLocalhost: true, AllowPrivate: true}
	}}
	masks := regexp.MustCompile(`(=|-package-|://)[^"]*`)
	hides := weakMCP{shown: func(text string) string { return masks.ReplaceAllString(text, "$1\u2022\u2022\u2022\u2022") }}
	unescapes := weakMCP{shown: func(text string) string {
		return strings.NewReplacer(`\x1b`, "\x1b", `\u001b`, "\x1b", `\u202e`, "\u202e").Replace(text)
	}}
	tells := weakMCP{shown: func(text string) string { return text + " " }}
	merges := weakMCP{gateway: merge}
	for id, c := range map[string]struct {
		weak weakMCP
		want string
	}{
		"mcp-client/unapproved-program": {approves, "ran the program"},
		"mcp-client/hidden-command":     {hides, "the prompt does not show"},
		"mcp-client/invisible-text":     {unescapes, "shows hidden characters"},
		"mcp-client/replaced-script":    {approves, "was used"},
		"mcp-client/replaced-variables": {approves, "was used"},
		"mcp-client/local-path":         {approves, "the server was told"},
		"mcp-client/metadata-address":   {approves, "is allowed"},
		"mcp-client/redirected-header":  {weakMCP{http: &http.Client{}}, "took the header along"},
		"mcp-client/login-script":       {tells, "the user was sent to"},
		"mcp-client/login-response":     {tells, "is used"},
		"mcp-client/terminal-control":   {unescapes, "shows hidden characters"},
		"mcp-client/elicitation":        {tells, "the user was sent to"},
		"mcp-client/recorded-secrets":   {tells, "has the secret"},
		"gateway/shadowed-tool":         {merges, "went to"},
		"gateway/posing-title":          {merges, "the title of"},
		"gateway/invisible-text":        {merges, "has hidden characters"},
		"gateway/rug-pull":              {merges, "the changed tool"},
		"gateway/rug-pull-between":      {merges, "was called"},
		"gateway/taken-resource":        {merges, "was read from another server"},
	} {
		t.Run(strings.ReplaceAll(id, "/", "-"), func(t *testing.T) {
			cfg := unisolated(t, nil)
			cfg.mcp = c.weak
			expectBroken(t, run(t, cfg, id), c.want)
		})
	}
}

// merge is a gateway that passes everything on; of two items with one name, the last
// server's wins.
func merge(servers []upstream) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "naive", Version: "1"}, &mcp.ServerOptions{Capabilities: gateway.Capabilities()})
	name := func(u upstream, tool string) string { return strings.ReplaceAll(u.name, ".", "_") + "__" + tool }
	s.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			tools, prompts, resources := &mcp.ListToolsResult{}, &mcp.ListPromptsResult{}, &mcp.ListResourcesResult{}
			var last mcp.Result
			for _, u := range servers {
				here, there := mcp.NewInMemoryTransports()
				if _, err := u.server.Connect(ctx, there, nil); err != nil {
					return nil, err
				}
				c, err := mcp.NewClient(&mcp.Implementation{Name: "naive", Version: "1"}, nil).Connect(ctx, here, nil)
				if err != nil {
					return nil, err
				}
				defer c.Close()
				for tool, err := range c.Tools(ctx, nil) {
					if err != nil {
						break // it has none
					}
					if r, ok := req.(*mcp.CallToolRequest); ok && r.Params.Name == name(u, tool.Name) {
						if last, err = c.CallTool(ctx, &mcp.CallToolParams{Name: tool.Name}); err != nil {
							return nil, err
						}
					}
					tool.Name = name(u, tool.Name)
					tools.Tools = append(tools.Tools, tool)
				}
				for prompt, err := range c.Prompts(ctx, nil) {
					if err == nil {
						prompts.Prompts = append(prompts.Prompts, prompt)
					}
				}
				for resource, err := range c.Resources(ctx, nil) {
					if err == nil {
						resources.Resources = append(resources.Resources, resource)
					}
				}
				if r, ok := req.(*mcp.ReadResourceRequest); ok {
					if res, err := c.ReadResource(ctx, &mcp.ReadResourceParams{URI: r.Params.URI}); err == nil {
						last = res
					}
				}
			}
			switch method {
			case "tools/list":
				return tools, nil
			case "prompts/list":
				return prompts, nil
			case "resources/list":
				return resources, nil
			case "tools/call", "resources/read":
				return last, nil
			}
			return next(ctx, method, req)
		}
	})
	return s
}
