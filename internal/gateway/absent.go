package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/mcpkit"
)

// callable returns the tools of a server that the gateway can call. It leaves out
// those that run as tasks only, and logs them once.
func (g *Gateway) callable(server string, tools []*mcp.Tool) (can []*mcp.Tool) {
	var cannot []string
	for _, t := range tools {
		if mcpkit.RequiresTask(t) {
			cannot = append(cannot, t.Name)
			continue
		}
		can = append(can, t)
	}
	g.mu.Lock()
	known := slices.Equal(cannot, g.tasksOnly[server])
	g.tasksOnly[server] = cannot
	g.mu.Unlock()
	if !known && len(cannot) > 0 {
		g.log.Info("tools of the server are not offered: they run as tasks only, which glovebox mcp does not support yet", "server", server, "tools", cannot)
	}
	return can
}

// absent returns why a tool that is not offered cannot be called, for the model of a
// client whose list of tools is out of date. It returns "" if no server would offer
// the tool. The server is asked again first if that is due, as for a list: the user
// may have trusted it since.
func (g *Gateway) absent(ctx context.Context, tool string) string {
	server, f, failed := g.unavailable(tool)
	if failed && f.due() && g.allowed(server) {
		asked := make(chan struct{})
		g.learnThen(server, sync.OnceFunc(func() { close(asked) }))
		timer := time.NewTimer(listWait)
		defer timer.Stop()
		select {
		case <-asked:
		case <-timer.C:
		case <-ctx.Done():
		}
		if g.Offers(tool) {
			return ""
		}
		server, f, failed = g.unavailable(tool)
	}
	switch {
	case server == "":
		return ""
	case !failed:
		return fmt.Sprintf("The tool %q of the server %q runs as a task only, which glovebox mcp does not support yet.", tool, server)
	case f.refused:
		return g.untrusted(server)
	}
	return fmt.Sprintf("The server %q is not available: %s", server, f.text)
}

// unavailable returns the server whose tool a name may be, and why the server was not
// asked for its tools; failed is false for a tool that runs as a task only. The server
// is "" if there is none.
func (g *Gateway) unavailable(tool string) (server string, f failure, failed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, def := range g.manager.Config().Servers {
		for _, name := range g.tasksOnly[def.Name] {
			if exposed(def.Name, name) == tool {
				return def.Name, failure{}, false
			}
		}
		if f, failed := g.failed[def.Name]; failed && strings.HasPrefix(tool, plain(def.Name)+"__") {
			return def.Name, f, true
		}
	}
	return "", failure{}, false
}

// untrusted tells a model that a server is refused, and what its user types to change
// that.
func (g *Gateway) untrusted(server string) string {
	return fmt.Sprintf("The server %q is not trusted. Its user can allow it with: %s", server, g.allow(server))
}
