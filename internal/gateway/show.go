package gateway

import (
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/offer"
)

// show has the server offer what another offers, in place of what it did before.
// What has not changed is not touched: clients are told of each change.
func (g *Gateway) show(server string, o offer.Offer, asked bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.offered[server]
	if before == nil {
		before = &offered{}
	}
	g.offered[server] = &offered{o, asked}
	changed(before.Tools, o.Tools, func(t *mcp.Tool) string { return t.Name },
		func(t *mcp.Tool) {
			copied := *t
			copied.Name = g.names.give(server, t.Name)
			if copied.InputSchema == nil {
				copied.InputSchema = map[string]any{"type": "object"}
			}
			g.server.AddTool(&copied, g.caller(server, t.Name))
		},
		func(t *mcp.Tool) { g.server.RemoveTools(g.names.take(server, t.Name)) })
	changed(before.Prompts, o.Prompts, func(p *mcp.Prompt) string { return p.Name },
		func(p *mcp.Prompt) {
			copied := *p
			copied.Name = exposed(server, p.Name)
			g.server.AddPrompt(&copied, func(ctx context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
				s, err := g.manager.Session(server)
				if err != nil {
					return nil, err
				}
				return s.GetPrompt(ctx, p.Name, r.Params.Arguments)
			})
		},
		func(p *mcp.Prompt) { g.server.RemovePrompts(exposed(server, p.Name)) })
	read := func(ctx context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		s, err := g.manager.Session(server)
		if err != nil {
			return nil, err
		}
		return s.ReadResource(ctx, r.Params.URI)
	}
	// Of two servers with a resource of one address, the last one that was asked
	// has it: an address is meant to be of one thing.
	changed(before.Resources, o.Resources, func(r *mcp.Resource) string { return r.URI },
		func(r *mcp.Resource) { g.server.AddResource(r, read) },
		func(r *mcp.Resource) { g.server.RemoveResources(r.URI) })
	changed(before.Templates, o.Templates, func(t *mcp.ResourceTemplate) string { return t.URITemplate },
		func(t *mcp.ResourceTemplate) { g.server.AddResourceTemplate(t, read) },
		func(t *mcp.ResourceTemplate) { g.server.RemoveResourceTemplates(t.URITemplate) })
}

// changed calls remove for what is no longer there, and add for what is new or other
// than before.
func changed[T any](before, now []*T, key func(*T) string, add, remove func(*T)) {
	old := make(map[string][]byte, len(before))
	for _, one := range before {
		old[key(one)] = image(one)
	}
	here := make(map[string]bool, len(now))
	for _, one := range now {
		k := key(one)
		if here[k] {
			continue // a server that lists a name twice means the first
		}
		here[k] = true
		if b, was := old[k]; !was || string(b) != string(image(one)) {
			add(one)
		}
	}
	for _, one := range before {
		if !here[key(one)] {
			remove(one)
		}
	}
}

func image(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return nil // it came as JSON
	}
	return b
}
