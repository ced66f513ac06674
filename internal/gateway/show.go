package gateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway/listing"
)

// show has the server offer what another offers, in place of what it did before.
// What has not changed is not touched: clients are told of each change.
func (g *Gateway) show(server string, o listing.Offer, asked bool) {
	o.Tools = g.callable(server, o.Tools)
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
			if !g.take(server, "tool", t.Name, func() { g.server.AddTool(&copied, g.tool(server, t.Name)) }) {
				g.server.RemoveTools(g.names.take(server, t.Name)) // it may have been right before
			}
		},
		func(t *mcp.Tool) { g.server.RemoveTools(g.names.take(server, t.Name)) })
	changed(before.Prompts, o.Prompts, func(p *mcp.Prompt) string { return p.Name },
		func(p *mcp.Prompt) {
			copied := *p
			copied.Name = g.prompts.give(server, p.Name)
			g.take(server, "prompt", p.Name, func() { g.server.AddPrompt(&copied, g.prompt(server, p.Name)) })
		},
		func(p *mcp.Prompt) { g.server.RemovePrompts(g.prompts.take(server, p.Name)) })
	addressed(g, server, "resource", g.resources, before.Resources, func(o *offered) []*mcp.Resource { return o.Resources },
		func(r *mcp.Resource) string { return r.URI },
		func(server string, r *mcp.Resource) { g.server.AddResource(r, g.resource(server)) }, g.server.RemoveResources)
	addressed(g, server, "resource template", g.templates, before.Templates, func(o *offered) []*mcp.ResourceTemplate { return o.Templates },
		func(t *mcp.ResourceTemplate) string { return t.URITemplate },
		func(server string, t *mcp.ResourceTemplate) { g.server.AddResourceTemplate(t, g.resource(server)) }, g.server.RemoveResourceTemplates)
}

// addressed is changed for what clients see under its own address, and notes whose it
// is. Of two servers with one address the one that had it first keeps it, for as long
// as it offers it: no server is to take what is another's. Then the other has it,
// which need not be asked anew for that.
func addressed[T any](g *Gateway, server, kind string, owners map[string]string, before []*T, of func(*offered) []*T, address func(*T) string, add func(string, *T), remove func(...string)) {
	give := func(server string, one *T) bool {
		ok := g.take(server, kind, address(one), func() { add(server, one) })
		if ok {
			owners[address(one)] = server
		}
		return ok
	}
	free := make(map[string]bool)
	own := slices.DeleteFunc(slices.Clone(before), func(one *T) bool { return owners[address(one)] != server })
	changed(own, of(g.offered[server]), address,
		func(one *T) {
			name := address(one)
			if owner, taken := owners[name]; taken && owner != server {
				g.log.Warn("what a server offers is left out", "server", server, "kind", kind, "name", name, "err", fmt.Sprintf("the server %q has it", owner))
				return
			}
			give(server, one)
		},
		func(one *T) {
			name := address(one)
			delete(owners, name)
			remove(name)
			free[name] = true
		})
	if len(free) == 0 {
		return
	}
	for _, other := range slices.Sorted(maps.Keys(g.offered)) {
		for _, one := range of(g.offered[other]) {
			if name := address(one); free[name] && give(other, one) {
				delete(free, name)
			}
		}
	}
}

// take takes something over from a server. What the SDK calls wrong, which it does by
// a panic, is left out: it came from a server, and must not end the others.
func (g *Gateway) take(server, kind, name string, add func()) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			g.log.Warn("what a server offers is left out", "server", server, "kind", kind, "name", name, "err", fmt.Sprint(p))
			ok = false
		}
	}()
	add()
	return true
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
