package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/mcpkit"
)

// A call is a client's request in progress at a server: of a tool, a prompt or a
// resource. It outlives the request that started it, since a modern client answers a
// request for input by another request.
type call struct {
	server string
	client client
	key    string // digest of server, method and arguments
	// program says that a program made the call, which answers no questions.
	program bool

	ctx     context.Context // ends with the call; carries the values of the first request
	cancel  context.CancelCauseFunc
	pending chan *pendingInput // requests for input to a modern client
	done    chan callResult    // capacity 1

	mu       sync.Mutex
	waiting  context.Context    // guarded by mu: of the request that the client waits for; nil if there is none
	session  *mcp.ServerSession // guarded by mu: of that request
	progress any                // guarded by mu: the token of that request, nil if it has none
	ended    time.Time          // guarded by mu: zero until the call has its outcome
	question string             // guarded by mu: a question of the server that no client could answer
}

type callResult struct {
	res mcp.Result
	err error
}

// inputParams are the parameters of a request that answer an earlier request for input.
type inputParams struct {
	responses mcp.InputResponseMap
	state     string
	meta      mcp.Meta
}

// forward sends a client's request to a server, or continues a call that waits for the
// client's answer. It returns an inputRequired if the server requests input.
func (g *Gateway) forward(ctx context.Context, server string, from client, session *mcp.ServerSession, what string, args any, in inputParams,
	do func(context.Context, *mcpkit.Session, *call) (mcp.Result, error)) (mcp.Result, error) {
	key, err := callDigest(server, what, args)
	if err != nil {
		return nil, err
	}
	c, answered, err := g.pending.resume(key, from, in)
	if err != nil {
		return nil, err
	}
	if c == nil {
		s, err := g.manager.Session(server)
		if err != nil {
			return nil, err
		}
		c = &call{server: server, client: from, key: key, program: from.program, pending: make(chan *pendingInput), done: make(chan callResult, 1), session: session}
		c.ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
		stop := context.AfterFunc(g.ctx, func() { c.cancel(context.Cause(g.ctx)) })
		end, err := g.serializer.begin(ctx, c)
		if err != nil {
			stop()
			c.cancel(err)
			return nil, err
		}
		c.setWaiter(ctx, session, in.meta["progressToken"])
		g.tasks.Go(func() {
			defer c.cancel(nil)
			defer stop()
			defer end()
			var res mcp.Result
			err := g.awaitInstall(c.ctx, s)
			if err == nil {
				res, err = do(context.WithValue(mcpkit.WithCapabilities(c.ctx, from.caps), callKey{}, c), s, c)
			}
			c.done <- callResult{res, err}
			c.mu.Lock()
			c.ended = time.Now()
			c.mu.Unlock()
		})
	} else {
		c.setWaiter(ctx, session, in.meta["progressToken"])
		answered.deliver()
	}
	defer c.clearWaiter()
	for {
		select {
		case o := <-c.done:
			return o.res, o.err
		case q := <-c.pending:
			if ask, ok := g.pending.add(q); ok {
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

// callDigest returns the same digest for equal requests.
func callDigest(server, what string, args any) (string, error) {
	b, err := json.Marshal([]any{server, what, args})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// setWaiter sets the request that the client waits for.
func (c *call) setWaiter(ctx context.Context, session *mcp.ServerSession, progress any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting, c.session, c.progress = ctx, session, progress
}

// endedAt returns when the call ended, if it has.
func (c *call) endedAt() (at time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended, !c.ended.IsZero()
}

// clearWaiter records that the client waits for no request.
func (c *call) clearWaiter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting, c.session, c.progress = nil, nil, nil
}

// waiter returns the request that the client waits for; ctx is nil if there is none.
func (c *call) waiter() (context.Context, *mcp.ServerSession, any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting, c.session, c.progress
}

// tool returns the handler that forwards calls of a tool as clients are offered it. A tool
// that its server lists with another definition is not called.
func (g *Gateway) tool(offered ServerTool) mcp.ToolHandler {
	server, tool := offered.Server, offered.Tool.Name
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		in := inputParams{req.Params.InputResponses, req.Params.RequestState, req.Params.Meta}
		res, err := g.forward(ctx, server, clientOf(req.Session, req.Params.Meta, req.Extra), req.Session, "tool "+tool, req.Params.Arguments, in,
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
				g.sendLevel(ctx, s)
				res, err := s.CallToolIf(ctx, params, func(ctx context.Context, tools []*mcp.Tool) error {
					return g.checkListed(ctx, offered, tools, "List the tools again.")
				})
				if err != nil {
					return nil, err // not a nil result in an interface
				}
				return res, nil
			})
		g.refreshIfCached(server)
		switch r := res.(type) {
		case *mcp.CallToolResult:
			return r, err
		case *inputRequired:
			return &mcp.CallToolResult{InputRequests: r.requests, RequestState: r.state}, nil
		}
		var answer *jsonrpc.Error
		if errors.As(err, &answer) {
			return nil, answer // the server's own error
		}
		if ctx.Err() != nil {
			return nil, err
		}
		// A tool result, not an error: the model should read why the server fails.
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: g.errorText(server, err)}}}, nil
	}
}

// prompt returns the handler that forwards requests of a server's prompt.
func (g *Gateway) prompt(server, prompt string) mcp.PromptHandler {
	return func(ctx context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		in := inputParams{req.Params.InputResponses, req.Params.RequestState, req.Params.Meta}
		res, err := g.forward(ctx, server, clientOf(req.Session, req.Params.Meta, req.Extra), req.Session, "prompt "+prompt, req.Params.Arguments, in,
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
		case *inputRequired:
			return &mcp.GetPromptResult{InputRequests: r.requests, RequestState: r.state}, nil
		}
		return nil, g.rpcError(server, err)
	}
}

// resource returns the handler that forwards reads of a server's resource.
func (g *Gateway) resource(server string) mcp.ResourceHandler {
	return func(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		in := inputParams{req.Params.InputResponses, req.Params.RequestState, req.Params.Meta}
		res, err := g.forward(ctx, server, clientOf(req.Session, req.Params.Meta, req.Extra), req.Session, "resource", req.Params.URI, in,
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
		case *inputRequired:
			return &mcp.ReadResourceResult{InputRequests: r.requests, RequestState: r.state}, nil
		}
		return nil, g.rpcError(server, err)
	}
}

// templateResource forwards reads of resources that templates match. The SDK calls it for
// any template that matches; it finds the server itself.
func (g *Gateway) templateResource(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	servers := g.resourceServers(req.Params.URI)
	if len(servers) != 1 { // the listings have changed since the middleware checked them
		return nil, mcp.ResourceNotFoundError(req.Params.URI)
	}
	return g.resource(servers[0])(ctx, req)
}

// rpcError converts an error into the JSON-RPC error for a client.
func (g *Gateway) rpcError(server string, err error) error {
	var answer *jsonrpc.Error
	if errors.As(err, &answer) {
		return answer
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: g.errorText(server, err)}
}

// errorText returns the error's text for a model. It records refused servers.
func (g *Gateway) errorText(server string, err error) string {
	if isRefusal(err) {
		g.markFailed(server, err)
		return g.untrustedText(server, errors.Is(err, mcpkit.ErrChanged))
	}
	if why, ok := errors.AsType[*UnavailableError](err); ok {
		return why.Text
	}
	return err.Error()
}

// refreshIfCached refreshes a server, once, whose published listing is only cached.
func (g *Gateway) refreshIfCached(server string) {
	g.mu.Lock()
	o := g.published[server]
	cached := o != nil && !o.fresh
	if cached {
		o.fresh = true
	}
	g.mu.Unlock()
	if cached {
		g.refresh(server)
	}
}

// progress maps progress tokens to calls. The tokens sent to servers are the gateway's
// own, since two clients may use the same one.
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

// forward forwards a progress notification to the client of the call, if the call is
// still in progress at that server.
func (p *progress) forward(server string, n *mcp.ProgressNotificationParams) {
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
	if ctx, session, own := c.waiter(); ctx != nil && own != nil {
		forwarded := *n
		forwarded.Meta, forwarded.ProgressToken = nil, own
		_ = session.NotifyProgress(ctx, &forwarded) // the client may be gone
	}
}
