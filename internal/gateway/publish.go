package gateway

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway/listing"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// publish replaces the published listing of a server. It leaves unchanged items alone,
// since the SDK notifies clients of each change.
func (g *Gateway) publish(server string, o listing.Entry, fresh bool) {
	g.replace(server, &published{Entry: o, listed: o, fresh: fresh}, nil)
}

// replace is publish. If current is not nil, it replaces only that listing, and keeps
// whether it is fresh.
func (g *Gateway) replace(server string, p, current *published) {
	p.Entry = g.visibleEntry(server, p.Entry)
	p.Tools = g.withoutTaskTools(server, p.Tools)
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.published[server]
	if current != nil {
		if before != current {
			return
		}
		p.fresh = current.fresh
	}
	if before == nil {
		before = &published{}
	}
	g.published[server] = p
	o := p.Entry
	applyDiff(before.Tools, o.Tools, func(t *mcp.Tool) string { return t.Name },
		func(t *mcp.Tool) {
			copied := *t
			if copied.Name = g.names.assign(server, t.Name); copied.Name == "" {
				g.leaveOut(server, "tool", t.Name, errNameTaken)
				return
			}
			if copied.InputSchema == nil {
				copied.InputSchema = map[string]any{"type": "object"}
			}
			if !g.tryAdd(server, "tool", t.Name, func() { g.server.AddTool(&copied, g.tool(server, t.Name)) }) {
				g.server.RemoveTools(g.names.release(server, t.Name)) // an earlier version may have been valid
			}
		},
		func(t *mcp.Tool) { g.server.RemoveTools(g.names.release(server, t.Name)) })
	applyDiff(before.Prompts, o.Prompts, func(p *mcp.Prompt) string { return p.Name },
		func(p *mcp.Prompt) {
			copied := *p
			if copied.Name = g.prompts.assign(server, p.Name); copied.Name == "" {
				g.leaveOut(server, "prompt", p.Name, errNameTaken)
				return
			}
			g.tryAdd(server, "prompt", p.Name, func() { g.server.AddPrompt(&copied, g.prompt(server, p.Name)) })
		},
		func(p *mcp.Prompt) { g.server.RemovePrompts(g.prompts.release(server, p.Name)) })
	publishByURI(g, server, "resource", g.resources, before.Resources, o.Resources, func(r *mcp.Resource) string { return r.URI },
		func(server string, r *mcp.Resource) { g.server.AddResource(r, g.resource(server)) }, g.server.RemoveResources)
	publishByURI(g, server, "resource template", g.templates, before.Templates, o.Templates, func(t *mcp.ResourceTemplate) string { return t.URITemplate },
		func(server string, t *mcp.ResourceTemplate) { g.server.AddResourceTemplate(t, g.resource(server)) }, g.server.RemoveResourceTemplates)
	if len(before.Templates) > 0 || len(o.Templates) > 0 {
		g.compileTemplates()
	}
}

// tryAdd calls add and reports whether it succeeded. The SDK panics on invalid items;
// one bad item of a server must not end the gateway.
func (g *Gateway) tryAdd(server, kind, name string, add func()) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			g.leaveOut(server, kind, name, fmt.Errorf("%v", p))
			ok = false
		}
	}()
	add()
	return true
}

// errNameTaken is the error for an item whose name and hash equal those of another.
var errNameTaken = errors.New("another item has its name")

// leaveOut logs an item that clients do not get.
func (g *Gateway) leaveOut(server, kind, name string, err error) {
	g.log.Warn("item of a server left out", logkey.Server, server, logkey.Item, kind, logkey.Name, name, logkey.Error, err)
}

// applyDiff calls remove for items that are gone, and add for items that are new or
// changed.
func applyDiff[T any](before, now []*T, key func(*T) string, add, remove func(*T)) {
	old := make(map[string][]byte, len(before))
	for _, one := range before {
		old[key(one)] = encode(one)
	}
	here := make(map[string]bool, len(now))
	for _, one := range now {
		k := key(one)
		if here[k] {
			continue // the first item of a name wins
		}
		here[k] = true
		if b, was := old[k]; !was || string(b) != string(encode(one)) {
			add(one)
		}
	}
	for _, one := range before {
		if !here[key(one)] {
			remove(one)
		}
	}
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return nil // not reached: it was decoded from JSON
	}
	return b
}
