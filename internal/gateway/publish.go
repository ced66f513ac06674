package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

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
	var left leftOut
	defer func() { left.log(g.log, server) }() // without the lock
	if g.toolsOnly {
		p.Prompts, p.Resources, p.Templates = nil, nil, nil
	}
	p.Entry = visibleEntry(server, p.Entry, &left)
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
	if len(o.Tools) > 0 {
		defer g.gotTools() // after they are in the names
	}
	applyDiff(before.Tools, o.Tools, func(t *mcp.Tool) string { return t.Name },
		func(t *mcp.Tool) {
			copied := *t
			if copied.Name = g.names.assign(server, t.Name); copied.Name == "" {
				left.add("tool", t.Name, errNameTaken)
				return
			}
			if copied.InputSchema == nil {
				copied.InputSchema = map[string]any{"type": "object"}
			}
			if !left.tryAdd("tool", t.Name, func() { g.server.AddTool(&copied, g.tool(ServerTool{server, g.hashes[server], t})) }) {
				g.server.RemoveTools(g.names.release(server, t.Name)) // an earlier version may have been valid
			}
		},
		func(t *mcp.Tool) { g.server.RemoveTools(g.names.release(server, t.Name)) })
	applyDiff(before.Prompts, o.Prompts, func(p *mcp.Prompt) string { return p.Name },
		func(p *mcp.Prompt) {
			copied := *p
			if copied.Name = g.prompts.assign(server, p.Name); copied.Name == "" {
				left.add("prompt", p.Name, errNameTaken)
				return
			}
			left.tryAdd("prompt", p.Name, func() { g.server.AddPrompt(&copied, g.prompt(server, p.Name)) })
		},
		func(p *mcp.Prompt) { g.server.RemovePrompts(g.prompts.release(server, p.Name)) })
	publishByURI(server, &left, "resource", g.resources, before.Resources, o.Resources, func(r *mcp.Resource) string { return r.URI },
		func(server string, r *mcp.Resource) { g.server.AddResource(r, g.resource(server)) }, g.server.RemoveResources)
	publishByURI(server, &left, "resource template", g.templates, before.Templates, o.Templates, func(t *mcp.ResourceTemplate) string { return t.URITemplate },
		func(_ string, t *mcp.ResourceTemplate) { g.server.AddResourceTemplate(t, g.templateResource) }, g.server.RemoveResourceTemplates)
	if len(before.Templates) > 0 || len(o.Templates) > 0 {
		g.compileTemplates()
	}
}

// tryAdd calls add and reports whether it succeeded. The SDK panics on invalid items;
// one bad item of a server must not end the gateway.
func (l *leftOut) tryAdd(kind, name string, add func()) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			l.add(kind, name, fmt.Errorf("%v", p))
			ok = false
		}
	}()
	add()
	return true
}

// errNameTaken is the error for an item whose name and hash equal those of another.
var errNameTaken = errors.New("another item has its name")

// leftOut are items of a listing that clients do not get. A server may list thousands of
// them again and again, so they are one line of the log.
type leftOut struct {
	count      int
	kind, name string // of the first
	err        error  // why the first is left out
}

func (l *leftOut) add(kind, name string, err error) {
	if l.count == 0 {
		l.kind, l.name, l.err = kind, name, err
	}
	l.count++
}

func (l *leftOut) log(to *slog.Logger, server string) {
	if l.count > 0 {
		to.Warn("items of a server left out", logkey.Server, server, logkey.Count, l.count, logkey.Item, l.kind, logkey.Name, l.name, logkey.Error, l.err)
	}
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
