package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/mcpkit"
)

// withoutTaskTools returns the tools that the gateway can call. It leaves out tools
// that only run as tasks, and logs them once.
func (g *Gateway) withoutTaskTools(server string, tools []*mcp.Tool) (callable []*mcp.Tool) {
	var tasksOnly []string
	for _, t := range tools {
		if mcpkit.RequiresTask(t) {
			tasksOnly = append(tasksOnly, t.Name)
			continue
		}
		callable = append(callable, t)
	}
	g.mu.Lock()
	known := slices.Equal(tasksOnly, g.tasksOnly[server])
	g.tasksOnly[server] = tasksOnly
	g.mu.Unlock()
	if !known && len(tasksOnly) > 0 {
		g.log.Warn("tools left out: they only run as tasks, which glovebox mcp does not support yet", logkey.Server, server, logkey.Tools, tasksOnly)
	}
	return callable
}

// whyUnavailable returns why a tool that is not listed cannot be called, for the model
// of a client with an outdated list of tools. It returns "" if no server would have the
// tool, or if the tool can be called now: the user may have accepted it or trusted the
// server meanwhile.
func (g *Gateway) whyUnavailable(ctx context.Context, tool string) string {
	if why, withheld := g.whyWithheld(tool); withheld {
		g.recompare(ctx)
		if g.HasTool(tool) {
			return ""
		}
		return why
	}
	server, f, failed := g.unavailable(tool)
	if failed && f.due() && g.mayRetry(server) {
		listed := make(chan struct{})
		g.refreshThen(server, sync.OnceFunc(func() { close(listed) }))
		timer := time.NewTimer(listWait)
		defer timer.Stop()
		select {
		case <-listed:
		case <-timer.C:
		case <-ctx.Done():
		}
		if g.HasTool(tool) {
			return ""
		}
	}
	server, f, failed = g.unavailable(tool)
	switch {
	case server == "":
		return ""
	case !failed:
		return fmt.Sprintf("The tool %q of the server %q only runs as a task, which glovebox mcp does not support yet.", tool, server)
	case f.refused:
		return g.untrustedText(server, f.changed)
	}
	return fmt.Sprintf("The server %q is not available: %s", server, f.text)
}

// unavailable returns the server that a tool's name belongs to and its last failure;
// failed is false for a tool that only runs as a task. The server is "" if there is
// none.
func (g *Gateway) unavailable(tool string) (server string, f failure, failed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, def := range g.manager.Config().Servers {
		for _, name := range g.tasksOnly[def.Name] {
			if g.names.nameFor(def.Name, name) == tool {
				return def.Name, failure{}, false
			}
		}
		if f, failed := g.failed[def.Name]; failed && strings.HasPrefix(tool, sanitize(def.Name)+"__") {
			return def.Name, f, true
		}
	}
	return "", failure{}, false
}

// untrustedText tells a model that a server is not trusted, and the command that trusts
// it. changed says that the user trusted it before it changed.
func (g *Gateway) untrustedText(server string, changed bool) string {
	if changed {
		return fmt.Sprintf("The server %q is not trusted any more: its definition or a file that it runs has changed since its user approved it. %s", server, g.remedyFor("review and allow", g.trustCommand(server)))
	}
	return fmt.Sprintf("The server %q is not trusted. %s", server, g.remedyFor("allow", g.trustCommand(server)))
}
