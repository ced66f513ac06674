package gateway

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway/listing"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// compareTimeout bounds the wait for other processes that write the pins.
const compareTimeout = 10 * time.Second

// offer publishes the listing of a server without the tools that have changed since they
// were first used.
func (g *Gateway) offer(ctx context.Context, server string, listed listing.Entry, fresh bool) {
	p := g.compared(ctx, server, listed)
	p.fresh = fresh
	g.replace(server, p, nil)
}

// recompare compares withheld tools again: the user may have accepted them meanwhile.
func (g *Gateway) recompare(ctx context.Context) {
	due := make(map[string]*published)
	g.mu.Lock()
	for server, p := range g.published {
		if len(p.withheld) > 0 || p.unpinned {
			due[server] = p
		}
	}
	g.mu.Unlock()
	for server, p := range due {
		if now := g.compared(ctx, server, p.listed); now.unpinned != p.unpinned || !slices.Equal(now.withheld, p.withheld) {
			g.replace(server, now, p)
		}
	}
}

// compared returns a listing without the tools that have changed since they were first
// used. If they cannot be compared, it has only the tools that are published already. It
// logs once why tools are withheld.
func (g *Gateway) compared(ctx context.Context, server string, listed listing.Entry) *published {
	p := &published{Entry: listed, listed: listed}
	def := g.manager.Config().Server(server)
	if g.pins == nil || def == nil {
		return p
	}
	g.mu.Lock()
	before := g.published[server]
	g.mu.Unlock()
	if before == nil {
		before = &published{}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, compareTimeout, fmt.Errorf("no access to the pins within %v", compareTimeout))
	defer cancel()
	changed, err := g.pins.Changed(ctx, def.Hash(), listed.Tools)
	if err != nil {
		p.unpinned = true
		changed = before.unknown(listed.Tools)
	}
	p.withheld = changed
	p.Tools = slices.DeleteFunc(slices.Clone(listed.Tools), func(t *mcp.Tool) bool { return slices.Contains(changed, t.Name) })
	switch {
	case p.unpinned && !before.unpinned:
		g.log.Warn("tools withheld: they cannot be compared with those that were first used", logkey.Server, server, logkey.Tools, changed, logkey.Error, err)
	case !p.unpinned && len(changed) > 0 && (before.unpinned || !slices.Equal(changed, before.withheld)):
		g.log.Warn("tools withheld: they have changed since they were first used", logkey.Server, server, logkey.Tools, changed, logkey.Command, g.reviewCommand(server), logkey.AcceptAll, g.unpinCommand(server))
	}
	return p
}

// unknown returns the names of the tools that differ from those that p shows to clients.
func (p *published) unknown(tools []*mcp.Tool) (names []string) {
	shown := make(map[string][]byte)
	for _, t := range p.listed.Tools {
		if !slices.Contains(p.withheld, t.Name) {
			shown[t.Name] = encode(t)
		}
	}
	for _, t := range tools {
		if before, there := shown[t.Name]; !there || !bytes.Equal(before, encode(t)) {
			names = append(names, t.Name)
		}
	}
	return names
}

// whyWithheld returns why a tool is withheld, for the model of a client.
func (g *Gateway) whyWithheld(tool string) (why string, withheld bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for server, p := range g.published {
		for _, name := range p.withheld {
			switch {
			case g.names.nameFor(server, name) != tool:
			case p.unpinned:
				return fmt.Sprintf("The tool %q of the server %q is withheld: whether it has changed since it was first used is not known. The log of Glovebox has the cause.", tool, server), true
			default:
				return fmt.Sprintf("The tool %q of the server %q has changed since it was first used. Its user can review it with: %s.", tool, server, g.reviewCommand(server)), true
			}
		}
	}
	return "", false
}
