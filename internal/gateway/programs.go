package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/mcpkit"
)

// A ServerTool is a tool as its server names it.
type ServerTool struct {
	Server     string
	Definition string    // hash of the server's definition, see mcpjson.Server.Hash
	Tool       *mcp.Tool // safe to show; do not modify
}

// A Reason says why a server or tool cannot be used.
type Reason int

// The reasons.
const (
	ReasonFailed    Reason = iota // the server does not start or answer
	ReasonStarting                // the server has not been listed yet
	ReasonUntrusted               // the user has not trusted the server
	ReasonChanged                 // the tool has changed since it was first used
	ReasonTask                    // the tool only runs as a task
	ReasonAsks                    // the tool was called, and asked its user
)

// An UnavailableError says why a server or tool cannot be used, for a model.
type UnavailableError struct {
	Reason Reason
	Text   string
}

func (e *UnavailableError) Error() string { return e.Text }

// ServerNames returns the names of the servers that are not disabled, in the order of
// the configuration.
func (g *Gateway) ServerNames() (names []string) {
	for _, def := range g.manager.Config().Servers {
		if !def.Disabled {
			names = append(names, def.Name)
		}
	}
	return names
}

// ServerTools returns the tools of a server that clients are offered now, under their own
// names; those of all servers, in the order of the configuration, for "". It waits for the
// first listing of a server that has never been listed: of one server for a minute, of all
// servers until 5 seconds after Register or, as long as none has tools, until 15 seconds after
// it, so that one server that does not answer delays no others.
func (g *Gateway) ServerTools(ctx context.Context, server string) (tools []ServerTool) {
	stop := awaitsStart(ctx, server)
	if server == "" {
		if !await(ctx, g.firstListed, partWait-time.Since(g.registered)) {
			await(ctx, g.haveTools, listWait-time.Since(g.registered))
		}
	} else if listed := g.listedOnce[server]; listed != nil {
		await(ctx, listed, g.listTimeout)
	}
	stop()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, def := range g.manager.Config().Servers {
		p := g.published[def.Name]
		if p == nil || server != "" && def.Name != server {
			continue
		}
		for _, t := range p.Tools {
			if _, offered := g.names.exposed[[2]string{def.Name, t.Name}]; offered {
				tools = append(tools, ServerTool{def.Name, g.hashes[def.Name], t})
			}
		}
	}
	return tools
}

// awaitFirst waits until servers without a cached listing have been listed once.
func (g *Gateway) awaitFirst(ctx context.Context) { await(ctx, g.firstListed, listWait) }

// await waits for done, at most for a time and until ctx ends, and reports whether done is
// closed.
func await(ctx context.Context, done <-chan struct{}, most time.Duration) bool {
	select {
	case <-done:
		return true
	default:
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// WhyUnavailable returns why a tool that is not among ServerTools cannot be used, or why
// its server cannot. It returns nil if the server works and has no such tool, and if the
// tool has become available: the user may have accepted it or trusted the server. It tries
// a server that failed again: after 30 s or, if a tool is named, after 2 s.
func (g *Gateway) WhyUnavailable(ctx context.Context, server, tool string) *UnavailableError {
	g.recompare(ctx)
	g.mu.Lock()
	f, failed := g.failed[server]
	g.mu.Unlock()
	pause := retryAfter
	if tool != "" {
		pause = retryCallAfter
	}
	if failed && f.dueAfter(pause) && g.mayRetry(server) {
		g.relist(ctx, server, pause)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.published[server]; p != nil && slices.Contains(p.withheld, tool) {
		if p.unpinned {
			return &UnavailableError{ReasonChanged, fmt.Sprintf("The tool %q of the server %q is withheld: whether it has changed since it was first used is not known. %s", tool, server, g.causeFor())}
		}
		return &UnavailableError{ReasonChanged, fmt.Sprintf("The tool %q of the server %q has changed since it was first used. %s", tool, server, g.remedyFor("review", g.reviewCommand(server)))}
	}
	if slices.Contains(g.tasksOnly[server], tool) {
		return &UnavailableError{ReasonTask, fmt.Sprintf("The tool %q of the server %q was not called: it only runs as a task, which code cannot start. Use another tool.", tool, server)}
	}
	f, failed = g.failed[server]
	switch {
	case !failed:
		if once := g.listedOnce[server]; once != nil {
			select {
			case <-once:
			default:
				return &UnavailableError{ReasonStarting, fmt.Sprintf("The server %q is still starting. Try again in a moment.", server)}
			}
		}
		return nil
	case f.refused:
		return &UnavailableError{ReasonUntrusted, g.untrustedText(server, f.changed)}
	}
	tried := ""
	if ago := time.Since(f.at).Truncate(time.Second); ago >= retryCallAfter {
		tried = fmt.Sprintf(" (tried %v ago; a call of one of its tools tries again)", ago)
	}
	return &UnavailableError{ReasonFailed, fmt.Sprintf("The server %q is not available: %s%s", server, f.forProgram, tried)}
}

// LeftOut returns the names of the tools of a server that clients are not offered, and for which
// WhyUnavailable has a reason of their own.
func (g *Gateway) LeftOut(server string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	names := slices.Clone(g.tasksOnly[server])
	if p := g.published[server]; p != nil {
		names = append(names, p.withheld...)
	}
	return names
}

// relist lists a server again that failed at least pause ago, and waits for that for at most
// listWait. Callers that come meanwhile wait for the same attempt.
func (g *Gateway) relist(ctx context.Context, server string, pause time.Duration) {
	g.mu.Lock()
	done, retrying := g.retrying[server]
	if !retrying {
		if f, failed := g.failed[server]; !failed || !f.dueAfter(pause) { // another caller's attempt has ended
			g.mu.Unlock()
			return
		}
		done = make(chan struct{})
		g.retrying[server] = done
	}
	g.mu.Unlock()
	if !retrying {
		g.refreshThen(server, sync.OnceFunc(func() {
			g.mu.Lock()
			delete(g.retrying, server)
			g.mu.Unlock()
			close(done)
		}))
	}
	await(ctx, done, listWait)
}

// CallTool calls a tool as ServerTools returned it, for a program rather than a client: the
// server's questions are refused, and its log messages and progress go nowhere. Just before it
// sends the request, it checks that the tool is still offered with these definitions, since a call
// may wait long for its server, and that the server lists it with them. An *UnavailableError says
// why the tool was not called or, with ReasonAsks, what it asked. Other errors that match
// mcpkit.ErrNotSent mean that it was not called, either.
func (g *Gateway) CallTool(ctx context.Context, t ServerTool, arguments json.RawMessage) (*mcp.CallToolResult, error) {
	server, tool := t.Server, t.Tool.Name
	program := client{caps: &mcp.ClientCapabilities{}, modern: true, program: true}
	var made *call
	res, err := g.forward(ctx, server, program, nil, "tool "+tool, arguments, inputParams{},
		func(ctx context.Context, s *mcpkit.Session, c *call) (mcp.Result, error) {
			made = c
			res, err := s.CallToolIf(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments}, func(ctx context.Context, tools []*mcp.Tool) error {
				if err := g.checkListed(ctx, t, tools, "Repeat the call."); err != nil {
					return err // it says more about what has changed
				}
				return g.checkOffered(t)
			})
			if err != nil {
				return nil, err // not a nil result in an interface
			}
			return res, nil
		})
	g.refreshIfCached(server)
	r, ok := res.(*mcp.CallToolResult)
	if err == nil && !ok {
		return nil, fmt.Errorf("call tool %q of mcp server %q: unexpected result %T", tool, server, res)
	}
	if why := made.whyAsked(r, err); why != nil {
		return nil, why
	}
	if err != nil {
		if isRefusal(err) {
			return nil, &UnavailableError{ReasonUntrusted, g.errorText(server, err)}
		}
		if why, ok := errors.AsType[*UnavailableError](err); ok {
			return nil, why
		}
		text := g.textFor(err, g.callCause())
		if text == err.Error() {
			return nil, err
		}
		if ctx.Err() == nil {
			g.failedCalls.Do(func() {
				g.log.Warn("call of a program failed", logkey.Server, server, logkey.Tool, tool, logkey.Error, err)
			})
		}
		return nil, &programError{fmt.Sprintf("call tool %q: %s", tool, text), err}
	}
	return r, nil
}
