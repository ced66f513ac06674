package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/mcpkit"
)

// caller passes calls on to a tool of a server.
func (g *Gateway) caller(server, tool string) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		s, err := g.manager.Session(server)
		if err != nil {
			return nil, err
		}
		params := &mcp.CallToolParams{Name: tool}
		if len(req.Params.Arguments) > 0 {
			params.Arguments = json.RawMessage(req.Params.Arguments)
		}
		if token := req.Params.GetProgressToken(); token != nil && req.Session != nil {
			own, end := g.progress.begin(server, func(ctx context.Context, p *mcp.ProgressNotificationParams) {
				told := *p
				told.ProgressToken = token
				_ = req.Session.NotifyProgress(ctx, &told) // a client that is gone does not miss it
			})
			defer end()
			params.SetProgressToken(own)
		}
		res, err := s.CallTool(ctx, params)
		g.used(server)
		if err == nil {
			return res, nil
		}
		var answer *jsonrpc.Error
		if errors.As(err, &answer) {
			return nil, answer // the server's own words and code
		}
		if ctx.Err() != nil {
			return nil, err
		}
		// That a server cannot be had is something that a model should read.
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: trouble(server, err)}}}, nil
	}
}

// trouble says what a model can make of it.
func trouble(server string, err error) string {
	if errors.Is(err, mcpkit.ErrUntrusted) {
		return fmt.Sprintf("The server %q is not used before its user has allowed it: glovebox mcp trust %s", server, server)
	}
	return err.Error()
}

// used has a server asked again, once, that was offered from what is remembered.
func (g *Gateway) used(server string) {
	g.mu.Lock()
	o := g.offered[server]
	again := o != nil && !o.asked
	if again {
		o.asked = true
	}
	g.mu.Unlock()
	if again {
		g.learn(server)
	}
}

// progress knows whom to tell how far a call is. The tokens are the gateway's own:
// those of two clients may be the same.
type progress struct {
	mu    sync.Mutex
	next  uint64                                                            // guarded by mu
	calls map[string]func(context.Context, *mcp.ProgressNotificationParams) // guarded by mu
}

func (p *progress) begin(server string, tell func(context.Context, *mcp.ProgressNotificationParams)) (token string, end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	token = strconv.FormatUint(p.next, 10)
	key := server + " " + token
	if p.calls == nil {
		p.calls = make(map[string]func(context.Context, *mcp.ProgressNotificationParams))
	}
	p.calls[key] = tell
	return token, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.calls, key)
	}
}

// pass tells the client of a call, if it is still under way and of that server.
func (p *progress) pass(ctx context.Context, server string, n *mcp.ProgressNotificationParams) {
	token, ok := n.ProgressToken.(string)
	if !ok {
		return
	}
	p.mu.Lock()
	tell := p.calls[server+" "+token]
	p.mu.Unlock()
	if tell != nil {
		tell(ctx, n)
	}
}
