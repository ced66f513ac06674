package mcpserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/tools"
)

var errShutdown = errors.New("the server is shutting down")

const listen = "subscriptions/listen"

// recover turns a panic into an error for the one client that caused it.
func (s *Server) recover(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
		defer func() {
			if p := recover(); p != nil {
				id := rand.Text()[:10]
				s.log.Error("panic while handling a request", "method", method, "id", id, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				res, err = nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "Internal error " + id + "; the server's log has the details"}
			}
		}()
		return next(ctx, method, req)
	}
}

// observe logs and counts.
func (s *Server) observe(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		start := time.Now()
		res, err := next(ctx, method, req)
		o := Observation{Method: method, Duration: time.Since(start)}
		if call, ok := req.(*mcp.CallToolRequest); ok && call.Params != nil {
			if _, known := slices.BinarySearch(s.names, call.Params.Name); known {
				o.Tool = call.Params.Name
			}
		}
		if r, ok := res.(*mcp.CallToolResult); ok && r != nil {
			o.ToolErr = r.IsError
		}
		if err != nil {
			o.Code = jsonrpc.CodeInternalError
			if e := (*jsonrpc.Error)(nil); errors.As(err, &e) {
				o.Code = e.Code
			}
		}
		s.log.Debug("request", "method", o.Method, "tool", o.Tool, "duration", o.Duration, "code", o.Code, "tool_error", o.ToolErr)
		if s.opts.Observe != nil {
			s.opts.Observe(o)
		}
		return res, err
	}
}

// code gives every error one of the protocol's codes: the SDK sends 0 for
// whatever is not a [jsonrpc.Error].
func (s *Server) code(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if err == nil {
			return res, nil
		}
		var coded *jsonrpc.Error
		if errors.As(err, &coded) && coded.Code != 0 {
			return nil, err
		}
		switch {
		case method == "initialize":
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: err.Error()}
		case ctx.Err() != nil:
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "Request cancelled: " + context.Cause(ctx).Error()}
		}
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}
	}
}

// register keeps what is in flight, so that it can be waited for and
// cancelled: the SDK closes a session only after its calls, and never
// cancels them.
func (s *Server) register(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if strings.HasPrefix(method, "notifications/") {
			return next(ctx, method, req)
		}
		session := req.GetSession()
		if of, ok := session.(*mcp.ServerSession); ok && of == nil {
			session = nil // a direct call
		}
		ctx, end := s.calls.begin(ctx, session, method != listen)
		defer end()
		return next(ctx, method, req)
	}
}

// gate refuses what is not there: tools that the catalogue lacks, and to
// modern clients the families that the server does not declare, which the SDK
// would answer with empty lists.
func (s *Server) gate(next mcp.MethodHandler) mcp.MethodHandler {
	caps := s.opts.Capabilities
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		family, _, _ := strings.Cut(method, "/")
		declared := true
		switch family {
		case "prompts":
			declared = caps.Prompts != nil
		case "resources":
			declared = caps.Resources != nil
		case "completion":
			declared = caps.Completions != nil
		}
		if !declared && modern(req) {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "Method not found: " + method}
		}
		call, ok := req.(*mcp.CallToolRequest)
		if !ok || s.opts.Extend != nil {
			return next(ctx, method, req)
		}
		if call.Params == nil || call.Params.Name == "" {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Missing required parameter: name"}
		}
		if _, known := slices.BinarySearch(s.names, call.Params.Name); !known {
			return nil, s.unknownTool(call.Params.Name, modern(req))
		}
		return next(ctx, method, req)
	}
}

// unknownTool is MethodNotFound to older clients. A modern one would read
// that, which HTTP turns into 404, as a server without tools.
func (s *Server) unknownTool(name string, modern bool) error {
	e := tools.UnknownTool(name, s.names)
	if modern {
		e.Code = jsonrpc.CodeInvalidParams
		return e
	}
	return methodNotFound{e}
}

// methodNotFound carries an error with code MethodNotFound past the SDK, which
// replaces whatever errors.Is finds to be one by its own text. The SDK asks
// errors.As for the code and Error for the text.
type methodNotFound struct{ e *jsonrpc.Error }

func (m methodNotFound) Error() string { return m.e.Message }

func (m methodNotFound) As(target any) bool {
	p, ok := target.(**jsonrpc.Error)
	if ok {
		*p = m.e
	}
	return ok
}

// Full returns the error as it should be sent, for a transport that can.
func (m methodNotFound) Full() *jsonrpc.Error { return m.e }

// calls are the requests in flight.
type calls struct {
	mu      sync.Mutex
	next    uint64          // guarded by mu
	running map[uint64]call // guarded by mu
	counted gauge
}

type call struct {
	session mcp.Session // nil: none
	cancel  context.CancelCauseFunc
}

// begin notes a request until end is called. A request that is not counted is
// not waited for.
func (c *calls) begin(ctx context.Context, session mcp.Session, counted bool) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c.mu.Lock()
	c.next++
	id := c.next
	if c.running == nil {
		c.running = make(map[uint64]call)
	}
	c.running[id] = call{session, cancel}
	c.mu.Unlock()
	if counted {
		c.counted.add(1)
	}
	return ctx, func() {
		cancel(nil)
		c.mu.Lock()
		delete(c.running, id)
		c.mu.Unlock()
		if counted {
			c.counted.add(-1)
		}
	}
}

// cancel cancels the requests of the sessions that match; nil matches all.
func (c *calls) cancel(match func(mcp.Session) bool, cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.running {
		if match == nil || match(r.session) {
			r.cancel(cause)
		}
	}
}

// A gauge counts, and can be waited for to be zero.
type gauge struct {
	mu   sync.Mutex
	n    int           // guarded by mu
	zero chan struct{} // guarded by mu: closed when n falls to zero; nil if nobody waits
}

func (g *gauge) add(d int) {
	g.mu.Lock()
	g.n += d
	if g.n == 0 && g.zero != nil {
		close(g.zero)
		g.zero = nil
	}
	g.mu.Unlock()
}

func (g *gauge) value() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n
}

// wait reports whether the gauge was zero before ctx ended.
func (g *gauge) wait(ctx context.Context) bool {
	g.mu.Lock()
	if g.n == 0 {
		g.mu.Unlock()
		return true
	}
	if g.zero == nil {
		g.zero = make(chan struct{})
	}
	zero := g.zero
	g.mu.Unlock()
	select {
	case <-zero:
		return true
	case <-ctx.Done():
		return false
	}
}
