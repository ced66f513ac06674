package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway/listing"
	"github.com/glovebox-dev/glovebox/internal/gateway/pin"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// checkOffered returns an *UnavailableError unless clients are offered the tool now, with the
// same definitions of the tool and its server.
func (g *Gateway) checkOffered(t ServerTool) error {
	name := t.Tool.Name
	var now []*mcp.Tool
	g.mu.Lock()
	_, offered := g.names.exposed[[2]string{t.Server, name}]
	if p := g.published[t.Server]; offered && p != nil && g.hashes[t.Server] == t.Definition {
		now = p.Tools
	}
	g.mu.Unlock()
	if slices.ContainsFunc(now, func(o *mcp.Tool) bool {
		return o == t.Tool || o.Name == name && pin.Digest(o) == pin.Digest(t.Tool)
	}) {
		return nil
	}
	return &UnavailableError{ReasonChanged, fmt.Sprintf("The tool %q of the server %q, or the definition of the server, has changed since the call began. The tool was not called. Repeat the call.", name, t.Server)}
}

// checkListed compares a tool as it is offered with the server's tools as it lists them on
// the connection over which the gateway will call it. A list that is offered may be that of
// another process or connection, and the server another program by now. It returns an
// *UnavailableError if the tool is gone or has another definition, unless the user accepts
// all changes of the server's tools. The server is then offered as it is listed, without the
// changed tool if its user has to review it first; otherwise again says what the caller can
// do.
func (g *Gateway) checkListed(ctx context.Context, t ServerTool, tools []*mcp.Tool, again string) error {
	name := t.Tool.Name
	named := slices.DeleteFunc(slices.Clone(tools), func(one *mcp.Tool) bool { return one.Name != name })
	// Of several tools of the name, the server may mean any.
	listed := visibleEntry(t.Server, listing.Entry{Tools: named}, new(leftOut)).Tools
	differs := slices.IndexFunc(listed, func(one *mcp.Tool) bool { return pin.Digest(one) != pin.Digest(t.Tool) })
	switch {
	case len(listed) == 0:
		g.offerListed(ctx, t.Server, tools)
		return &UnavailableError{ReasonChanged, fmt.Sprintf("The server %q no longer has the tool %q, or offers it in an unusable form. It was not called. List the tools again.", t.Server, name)}
	case differs < 0 || g.acceptsAny(t.Server):
		return nil
	}
	changed := changes(t.Tool, listed[differs])
	g.log.Warn("tool not called: its server lists it with another definition than the one offered", logkey.Server, t.Server, logkey.Tool, name, logkey.Note, changed)
	g.offerListed(ctx, t.Server, tools)
	begin := fmt.Sprintf("The tool %q of the server %q was not called: it has changed since it was offered (%s).", name, t.Server, changed)
	g.mu.Lock()
	p := g.published[t.Server]
	withheld := p != nil && slices.Contains(p.withheld, name)
	unpinned := p != nil && p.unpinned
	g.mu.Unlock()
	switch {
	case !withheld:
		return &UnavailableError{ReasonChanged, begin + " " + again}
	case unpinned:
		return &UnavailableError{ReasonChanged, fmt.Sprintf("%s Whether its user has accepted that is not known. %s", begin, g.causeFor())}
	}
	return &UnavailableError{ReasonChanged, begin + " " + g.remedyFor("review and accept", g.reviewCommand(t.Server))}
}

// acceptsAny reports whether the user accepts all changes of a server's tools.
func (g *Gateway) acceptsAny(server string) bool {
	if g.pins == nil {
		return false
	}
	accepts, err := g.pins.AcceptsAny(g.hashes[server])
	return err == nil && accepts
}

// offerListed offers the tools of a server as it lists them now.
func (g *Gateway) offerListed(ctx context.Context, server string, tools []*mcp.Tool) {
	var entry listing.Entry
	fresh := false
	g.mu.Lock()
	if p := g.published[server]; p != nil {
		entry, fresh = p.listed, p.fresh
	}
	g.mu.Unlock()
	entry.Tools = tools
	g.offer(ctx, server, entry, fresh)
}

// changes names the parts in which two definitions of a tool differ.
func changes(before, now *mcp.Tool) string {
	var parts []string
	for _, part := range []struct {
		name string
		of   func(t *mcp.Tool) *mcp.Tool
	}{
		{"its title", func(t *mcp.Tool) *mcp.Tool { return &mcp.Tool{Title: t.Title} }},
		{"its description", func(t *mcp.Tool) *mcp.Tool { return &mcp.Tool{Description: t.Description} }},
		{"its arguments", func(t *mcp.Tool) *mcp.Tool { return &mcp.Tool{InputSchema: t.InputSchema} }},
		{"its result", func(t *mcp.Tool) *mcp.Tool { return &mcp.Tool{OutputSchema: t.OutputSchema} }},
		{"what it says about its effects", func(t *mcp.Tool) *mcp.Tool { return &mcp.Tool{Annotations: t.Annotations} }},
	} {
		if pin.Digest(part.of(before)) != pin.Digest(part.of(now)) {
			parts = append(parts, part.name)
		}
	}
	if len(parts) == 0 {
		return "its definition"
	}
	return strings.Join(parts, ", ")
}
