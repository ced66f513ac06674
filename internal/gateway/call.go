package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strconv"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/mcpkit"
)

// A call is a request of a client that is under way at a server: of a tool, a prompt
// or a resource. It runs apart from the request that began it, since a modern client
// that is asked something makes another request in order to answer.
type call struct {
	server string
	client client
	key    string // what is called with which arguments

	ctx    context.Context // ends with the call; has the values of the first request
	cancel context.CancelCauseFunc
	asked  chan *question // of a modern client
	done   chan outcome   // has room for one

	mu       sync.Mutex
	waiting  context.Context    // guarded by mu: of the request that the client waits for now; nil if it waits for none
	session  *mcp.ServerSession // guarded by mu: of that request
	progress any                // guarded by mu: the token of that request, nil if it has none
}

type outcome struct {
	res mcp.Result
	err error
}

// inputs is what the parameters of such a request may bring besides it.
type inputs struct {
	responses mcp.InputResponseMap
	state     string
	meta      mcp.Meta
}

// relay makes a request of a client at a server, or goes on with one that waits for
// the client's answer.
func (g *Gateway) relay(ctx context.Context, server string, from client, session *mcp.ServerSession, what string, args any, in inputs,
	do func(context.Context, *mcpkit.Session, *call) (mcp.Result, error)) (mcp.Result, error) {
	key, err := keyOf(server, what, args)
	if err != nil {
		return nil, err
	}
	c, again, err := g.parked.resume(key, from, in)
	if err != nil {
		return nil, err
	}
	if c == nil {
		s, err := g.manager.Session(server)
		if err != nil {
			return nil, err
		}
		c = &call{server: server, client: from, key: key, asked: make(chan *question), done: make(chan outcome, 1), session: session}
		c.ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
		stop := context.AfterFunc(g.ctx, func() { c.cancel(context.Cause(g.ctx)) })
		end, err := g.lines.enter(ctx, c)
		if err != nil {
			stop()
			c.cancel(err)
			return nil, err
		}
		c.attend(ctx, session, in.meta["progressToken"])
		g.tasks.Go(func() {
			defer c.cancel(nil)
			defer stop()
			defer end()
			res, err := do(context.WithValue(mcpkit.WithCapabilities(c.ctx, from.caps), callKey{}, c), s, c)
			c.done <- outcome{res, err}
		})
	} else {
		c.attend(ctx, session, in.meta["progressToken"])
		again.settle()
	}
	defer c.unattend()
	for {
		select {
		case o := <-c.done:
			return o.res, o.err
		case q := <-c.asked:
			if ask, ok := g.parked.park(q); ok {
				return ask, nil
			}
		case <-ctx.Done():
			c.cancel(context.Cause(ctx))
			o := <-c.done
			return o.res, o.err
		}
	}
}

type callKey struct{}

// keyOf is the same for two requests that ask for the same.
func keyOf(server, what string, args any) (string, error) {
	b, err := json.Marshal([]any{server, what, args})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// attend says which request the client waits for.
func (c *call) attend(ctx context.Context, session *mcp.ServerSession, progress any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting, c.session, c.progress = ctx, session, progress
}

// unattend says that the client waits no longer.
func (c *call) unattend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting, c.session, c.progress = nil, nil, nil
}

// attended returns the request that the client waits for; the context is nil if
// there is none.
func (c *call) attended() (context.Context, *mcp.ServerSession, any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting, c.session, c.progress
}

// tool passes calls on to a tool of a server.
func (g *Gateway) tool(server, tool string) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		in := inputs{req.Params.InputResponses, req.Params.RequestState, req.Params.Meta}
		res, err := g.relay(ctx, server, clientOf(req.Session, req.Params.Meta, req.Extra), req.Session, "tool "+tool, req.Params.Arguments, in,
			func(ctx context.Context, s *mcpkit.Session, c *call) (mcp.Result, error) {
				params := &mcp.CallToolParams{Name: tool}
				if a := req.Params.Arguments; len(a) > 0 && string(a) != "null" {
					params.Arguments = json.RawMessage(req.Params.Arguments)
				}
				if level, ok := in.meta[mcp.MetaKeyLogLevel]; ok {
					params.Meta = mcp.Meta{mcp.MetaKeyLogLevel: level}
				}
				if in.meta["progressToken"] != nil {
					own, end := g.progress.begin(server, c)
					defer end()
					params.SetProgressToken(own)
				}
				g.verbose(ctx, s)
				res, err := s.CallTool(ctx, params)
				if err != nil {
					return nil, err // not a nil result in an interface
				}
				return res, nil
			})
		g.used(server)
		switch r := res.(type) {
		case *mcp.CallToolResult:
			return r, err
		case *ask:
			return &mcp.CallToolResult{InputRequests: r.requests, RequestState: r.state}, nil
		}
		var answer *jsonrpc.Error
		if errors.As(err, &answer) {
			return nil, answer // the server's own words and code
		}
		if ctx.Err() != nil {
			return nil, err
		}
		// That a server cannot be had is something that a model should read.
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: g.trouble(server, err)}}}, nil
	}
}

// prompt passes requests on for a prompt of a server.
func (g *Gateway) prompt(server, prompt string) mcp.PromptHandler {
	return func(ctx context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		in := inputs{req.Params.InputResponses, req.Params.RequestState, req.Params.Meta}
		res, err := g.relay(ctx, server, clientOf(req.Session, req.Params.Meta, req.Extra), req.Session, "prompt "+prompt, req.Params.Arguments, in,
			func(ctx context.Context, s *mcpkit.Session, _ *call) (mcp.Result, error) {
				res, err := s.GetPrompt(ctx, prompt, req.Params.Arguments)
				if err != nil {
					return nil, err
				}
				return res, nil
			})
		switch r := res.(type) {
		case *mcp.GetPromptResult:
			return r, err
		case *ask:
			return &mcp.GetPromptResult{InputRequests: r.requests, RequestState: r.state}, nil
		}
		return nil, g.refusal(server, err)
	}
}

// resource passes requests on for a resource of a server.
func (g *Gateway) resource(server string) mcp.ResourceHandler {
	return func(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		in := inputs{req.Params.InputResponses, req.Params.RequestState, req.Params.Meta}
		res, err := g.relay(ctx, server, clientOf(req.Session, req.Params.Meta, req.Extra), req.Session, "resource", req.Params.URI, in,
			func(ctx context.Context, s *mcpkit.Session, _ *call) (mcp.Result, error) {
				res, err := s.ReadResource(ctx, req.Params.URI)
				if err != nil {
					return nil, err
				}
				return res, nil
			})
		switch r := res.(type) {
		case *mcp.ReadResourceResult:
			return r, err
		case *ask:
			return &mcp.ReadResourceResult{InputRequests: r.requests, RequestState: r.state}, nil
		}
		return nil, g.refusal(server, err)
	}
}

// refusal is an error as a client gets it.
func (g *Gateway) refusal(server string, err error) error {
	var answer *jsonrpc.Error
	if errors.As(err, &answer) {
		return answer
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: g.trouble(server, err)}
}

// trouble says what a model can make of it. A server that is refused is not offered
// any longer.
func (g *Gateway) trouble(server string, err error) string {
	if refused(err) {
		g.fail(server, err)
		return g.untrusted(server)
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
	next  uint64           // guarded by mu
	calls map[string]*call // guarded by mu
}

func (p *progress) begin(server string, c *call) (token string, end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	token = strconv.FormatUint(p.next, 10)
	key := server + " " + token
	if p.calls == nil {
		p.calls = make(map[string]*call)
	}
	p.calls[key] = c
	return token, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.calls, key)
	}
}

// pass tells the client of a call, if it is still under way and of that server.
func (p *progress) pass(server string, n *mcp.ProgressNotificationParams) {
	token, ok := n.ProgressToken.(string)
	if !ok {
		return
	}
	p.mu.Lock()
	c := p.calls[server+" "+token]
	p.mu.Unlock()
	if c == nil {
		return
	}
	if ctx, session, own := c.attended(); ctx != nil && own != nil {
		told := *n
		told.Meta, told.ProgressToken = nil, own
		_ = session.NotifyProgress(ctx, &told) // a client that is gone does not miss it
	}
}
