package mcpkit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/mcpkit/internal/child"
	"github.com/glovebox-dev/glovebox/mcpkit/internal/envelope"
	"github.com/glovebox-dev/glovebox/mcpkit/internal/stream"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// connState is the state of one connection that the SDK's session does not have.
type connState struct {
	post          func(ctx context.Context, method string, message []byte) error // sends a message that the SDK cannot send; nil if conn is set
	conn          mcp.Connection                                                 // of a stream; nil for HTTP
	notifications notifications                                                  // received over a stream
	onResult      func(result []byte)                                            // called with each result received over a stream
	onClose       []func()                                                       // called after the connection has ended
	origins       []string                                                       // of the server's URLs; nil for a stream
	maxValues     int                                                            // of a message
	maxArriving   int64                                                          // bytes of messages over HTTP that are not complete
	arriving      atomic.Int64                                                   // such bytes
	tools         listedTools                                                    // of the server

	once     sync.Once
	mu       sync.Mutex
	err      error                    // guarded by mu: of the last read
	expected map[jsonrpc.ID]*expected // guarded by mu: responses that need admission
}

// ServerExitedError reports that the program of a stdio server ended before its
// connection was closed. Sessions return it, wrapped, from every call that the
// program left unanswered.
type ServerExitedError = child.ExitError

// readError returns the error that ended the connection, if it is known.
func (c *connState) readError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// countValues returns an upper bound of the values in JSON text, less one.
func countValues(b []byte) int {
	var s envelope.Scanner
	s.Add(b)
	return s.Values
}

// safe returns an error of the connection with a text that has no secrets of URLs.
func (c *connState) safe(err error) error { return withoutURLs(err, c.origins) }

func (c *connState) close() {
	c.once.Do(func() {
		c.notifications.close()
		for _, f := range c.onClose {
			f()
		}
	})
}

// observedConn records read errors and received notifications in its connState. It does
// not deliver messages that would take too much memory.
type observedConn struct {
	mcp.Connection
	state *connState
}

func (c *observedConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.Connection.Read(ctx)
	if err != nil && !errors.Is(err, io.EOF) {
		c.state.mu.Lock()
		c.state.err = err
		c.state.mu.Unlock()
	}
	switch m := m.(type) {
	case *jsonrpc.Request:
		if countValues(m.Params) > c.state.maxValues {
			m.Params = nil // as if the server had sent none, which is invalid
		}
		if !m.ID.IsValid() {
			c.state.notifications.countReceived(m.Method)
			c.state.tools.heard(m.Method)
		}
	case *jsonrpc.Response:
		if _, err := c.state.admit(m.ID, len(m.Result), countValues(m.Result)); err != nil {
			return &jsonrpc.Response{ID: m.ID, Error: err}, nil
		}
		c.state.onResult(m.Result)
	}
	return m, err
}

func (c *observedConn) Write(ctx context.Context, m jsonrpc.Message) error {
	r, ok := m.(*jsonrpc.Request)
	call := ok && r.IsCall()
	if call {
		c.state.expect(ctx, r.ID)
		setSent(ctx, true)
	}
	err := c.Connection.Write(ctx, m)
	if call && errors.Is(err, mcp.ErrConnectionClosed) {
		setSent(ctx, false) // nothing was written
	}
	return err
}

// isResponse reports whether an error is an error response of the server.
func isResponse(err error) bool {
	var e *jsonrpc.Error
	return errors.As(err, &e)
}

// Allowed reports, without connecting, whether a connection to the server would be
// refused. It calls Options.Trust, as a connection does. For a server that is not
// trusted it checks what the definition requires and where its URL points. nil means
// that a connection would be tried. It may still be refused then, because names are
// looked up only when connecting. The error is a [*Refusal], an [*outbound.Refusal], or
// an error of Options.Trust or of the definition.
func (s *Session) Allowed(ctx context.Context) error {
	if s.m.opts.Dial != nil {
		return nil
	}
	trust, err := s.checkTrust(ctx)
	if err != nil || trust == Trusted || s.stream != nil {
		return err
	}
	r, err := s.expand(ctx, trust)
	if err != nil {
		return err
	}
	for _, text := range []string{r.URL, r.SSEURL} {
		u, err := url.Parse(text)
		if err == nil && text != "" {
			err = s.policy(trust).Check(s.def.Name, u)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkTrust calls Options.Trust and checks that the definition requires no more than
// that trust allows.
func (s *Session) checkTrust(ctx context.Context) (Trust, error) {
	trust, err := s.trust(ctx)
	switch {
	case err != nil:
		return Untrusted, err
	case s.stream != nil && trust != Trusted:
		return trust, &Refusal{Server: s.def.Name, Reason: ReasonStream}
	}
	return trust, trust.check(s.def)
}

// resolve checks trust and expands the definition.
func (s *Session) resolve(ctx context.Context) (*mcpjson.Resolved, Trust, error) {
	trust, err := s.checkTrust(ctx)
	if err != nil {
		return nil, trust, err
	}
	r, err := s.expand(ctx, trust)
	return r, trust, err
}

// expand expands the definition. For an untrusted server the resolver is empty.
func (s *Session) expand(ctx context.Context, trust Trust) (*mcpjson.Resolved, error) {
	var resolver mcpjson.Resolver // resolves nothing
	if trust == Trusted {
		resolver = s.m.opts.Resolver
		resolver.Root = cmp.Or(resolver.Root, s.def.Dir)
	}
	r, err := s.def.Resolve(ctx, resolver)
	if err != nil {
		return nil, err
	}
	if r.Socket != "" && trust != Trusted {
		return nil, &Refusal{Server: s.def.Name, Reason: ReasonSocket, What: r.Socket}
	}
	return r, nil
}

func (s *Session) trust(ctx context.Context) (Trust, error) {
	if s.m.opts.Trust == nil {
		return Untrusted, nil
	}
	trust, err := s.m.opts.Trust(ctx, s.def)
	if err != nil {
		return Untrusted, fmt.Errorf("trust mcp server %q: %w", s.def.Name, err)
	}
	return trust, nil
}

// policy returns the outbound policy to apply; nil for none.
func (s *Session) policy(trust Trust) *outbound.Policy {
	if trust == Trusted {
		return nil
	}
	return &s.m.opts.Outbound
}

// dial makes a connection.
func (s *Session) dial(ctx context.Context) (*connection, error) {
	if s.m.opts.Dial != nil {
		return s.dialStream(ctx, nil, Trusted, func(ctx context.Context, _ stream.Options) (mcp.Connection, error) {
			return s.m.opts.Dial(ctx, s.def)
		})
	}
	if s.stream != nil {
		trust, err := s.checkTrust(ctx)
		if err != nil {
			return nil, err
		}
		return s.dialStream(ctx, nil, trust, func(_ context.Context, o stream.Options) (mcp.Connection, error) {
			return stream.New(s.stream, o), nil
		})
	}
	r, trust, err := s.resolve(ctx)
	if err != nil {
		return nil, err
	}
	switch s.def.Transport {
	case mcpjson.TransportStdio:
		return s.dialStream(ctx, r, trust, func(ctx context.Context, o stream.Options) (mcp.Connection, error) {
			return s.spawn(ctx, r, o)
		})
	case mcpjson.TransportUnix:
		return s.dialStream(ctx, r, trust, func(ctx context.Context, o stream.Options) (mcp.Connection, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "unix", r.Socket)
			if err != nil {
				return nil, fmt.Errorf("connect mcp server %q: %w", s.def.Name, err)
			}
			return stream.New(conn, o), nil
		})
	}
	return s.dialHTTP(ctx, r, trust)
}

func (s *Session) spawn(ctx context.Context, r *mcpjson.Resolved, o stream.Options) (mcp.Connection, error) {
	var after []func()
	if log := s.stdoutLog(); log != nil {
		o.Trace = teeTrace(o.Trace, log.message)
		after = append(after, func() { log.Close() })
	}
	c := &child.Command{
		Name: s.def.Name, Argv: r.Argv, Dir: r.Dir, Env: append(s.m.baseEnv(s.def.InheritEnv), r.Env...),
		Grace: s.m.opts.Limits.Grace, Idle: s.m.opts.Limits.IdleGrace, Stream: o,
	}
	if out := s.openOutputs(".stderr.log", s.m.opts.Stderr); out != nil {
		c.Stderr = out
		after = append(after, func() { out.Close() })
	}
	done := sync.OnceFunc(func() {
		for _, f := range after {
			f()
		}
	})
	conn, err := c.Connect(ctx)
	if err != nil {
		done()
		return nil, err
	}
	return &closingConn{conn, done}, nil
}

// closingConn calls a function after the connection was closed.
type closingConn struct {
	mcp.Connection
	onClose func()
}

func (c *closingConn) Close() error {
	defer c.onClose()
	return c.Connection.Close()
}

// dialStream opens a stream, determines the server's era and performs the handshake.
func (s *Session) dialStream(ctx context.Context, r *mcpjson.Resolved, trust Trust, open func(context.Context, stream.Options) (mcp.Connection, error)) (*connection, error) {
	l := &connState{onResult: s.readToolList, maxValues: s.m.opts.Limits.Values}
	o := stream.Options{MaxMessage: s.m.opts.Limits.Message, TooLarge: &outbound.TooLargeError{Server: s.def.Name, Limit: int64(s.m.opts.Limits.Message)}, Trace: messageTracer(s.openTrace(l, r))}
	era, told := s.era()
	conn, err := open(ctx, o)
	if err == nil && era == Auto {
		var next mcp.Connection
		era, next, err = probe(ctx, conn, s.m.opts.Client, probeTimeout)
		switch {
		case err == nil:
			conn = next
		case ctx.Err() == nil && s.stream == nil:
			// Some servers exit when they receive an unknown request.
			conn.Close()
			era = Legacy
			conn, err = open(ctx, o)
		default:
			conn.Close()
		}
	}
	if err != nil {
		l.close()
		return nil, err
	}
	cs, client, err := s.handshake(ctx, l, conn, era, trust)
	if p, ok := conn.(*probedConn); ok && err != nil && p.modern.Load() && s.stream == nil && ctx.Err() == nil {
		// The server was only slow. After its answer it takes the handshake for a
		// second one.
		conn.Close()
		if conn, err = open(ctx, o); err == nil {
			cs, client, err = s.handshake(ctx, l, conn, Modern, trust)
		}
	}
	if err != nil {
		if conn != nil {
			conn.Close()
		}
		l.close()
		if !told {
			s.remember(ctx, Auto)
		}
		if why := l.readError(); why != nil && !isResponse(err) {
			err = why // more specific than "connection closed"
		}
		return nil, fmt.Errorf("connect mcp server %q: %w", s.def.Name, err)
	}
	s.remember(ctx, eraOf(cs))
	if p, ok := conn.(*probedConn); ok && eraOf(cs) == Legacy {
		// The server may be slow and speak both eras: its answer to the probe can
		// arrive at any time.
		l.onClose = append(l.onClose, func() {
			if p.modern.Load() {
				s.remember(context.WithoutCancel(ctx), Modern)
			}
		})
	}
	return &connection{cs: cs, client: client, state: l}, nil
}

// handshake starts a session of an era.
func (s *Session) handshake(ctx context.Context, l *connState, conn mcp.Connection, era Era, trust Trust) (*mcp.ClientSession, *mcp.Client, error) {
	l.conn = conn
	var o mcp.ClientSessionOptions
	if era == Legacy {
		o.ProtocolVersion = revision.LastLegacy
	}
	client := s.client(trust, l)
	cs, err := client.Connect(ctx, ready{&observedConn{conn, l}}, &o)
	return cs, client, err
}

func eraOf(cs *mcp.ClientSession) Era {
	if r := cs.InitializeResult(); r != nil && r.ProtocolVersion >= revision.Modern {
		return Modern
	}
	return Legacy
}

// era returns the era to use. told reports that it comes from the options, not
// from memory.
func (s *Session) era() (era Era, told bool) {
	if s.m.opts.Era != Auto {
		return s.m.opts.Era, true
	}
	if s.stream != nil {
		return Auto, false
	}
	return s.m.opts.Eras.lookup(s.def.Hash()), false
}

func (s *Session) remember(ctx context.Context, era Era) {
	if s.m.opts.Era != Auto || s.stream != nil {
		return
	}
	if err := s.m.opts.Eras.remember(ctx, s.def.Hash(), era); err != nil {
		s.m.log.Warn("remember the era of an mcp server", "server", s.def.Name, "err", err)
	}
}

// withoutValues returns a context that ends with ctx and has none of its values. The
// contexts of all questions of the server derive from the context of the connection,
// and must not see the values of the request that happened to make it.
func withoutValues(ctx context.Context) (context.Context, context.CancelFunc) {
	base, end := context.WithCancelCause(context.Background())
	stop := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	cancel := func() {}
	if deadline, ok := ctx.Deadline(); ok {
		// Callees may use the deadline. It is later than that of ctx, whose cause is
		// the better error.
		base, cancel = context.WithDeadline(base, deadline.Add(time.Second))
	}
	return base, func() {
		stop()
		cancel()
		end(nil)
	}
}

// resubscribeInterval is the minimum time between two reconnections because of a
// subscription that ended: some servers end each one soon.
const resubscribeInterval = time.Minute

// subscriptionEnded makes the next request reconnect, because the server has ended its
// subscription. Requests in flight are completed first.
func (s *Session) subscriptionEnded(link *connState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connection == nil || s.connection.state != link || time.Since(s.lastResubscribe) < resubscribeInterval {
		return
	}
	s.lastResubscribe = time.Now()
	s.retireLocked(s.connection)
}

// announceLists reports changes of all lists to the hooks: changes during the loss of
// the connection were not reported.
func (s *Session) announceLists(l *connection) {
	hear, info := s.m.opts.Hooks.ListChanged, l.cs.InitializeResult()
	if hear == nil || info == nil || info.Capabilities == nil {
		return
	}
	caps := info.Capabilities
	for list, offered := range map[string]bool{"tools": caps.Tools != nil, "prompts": caps.Prompts != nil, "resources": caps.Resources != nil} {
		if offered {
			method := "notifications/" + list + "/list_changed"
			l.state.notifications.countReceived(method)
			s.deliver(&l.state.notifications, method, func(ctx context.Context) { hear(ctx, s.def.Name, list) })
		}
	}
}

// restoreState sets the logging level and the subscriptions of the previous connection
// on a new one. It only logs errors, because the request that needs the connection
// matters more.
func (s *Session) restoreState(ctx context.Context, l *connection) {
	s.mu.Lock()
	level, watched := s.level, slices.Collect(maps.Keys(s.subscriptions))
	s.mu.Unlock()
	var errs []error
	if level != "" && eraOf(l.cs) == Legacy {
		errs = append(errs, l.cs.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: level}))
	}
	for _, uri := range watched {
		errs = append(errs, l.cs.Subscribe(ctx, &mcp.SubscribeParams{URI: uri}))
	}
	if err := errors.Join(errs...); err != nil {
		s.m.log.Warn("restore log level and subscriptions of an mcp server", "server", s.def.Name, "err", l.state.safe(err))
	}
}
