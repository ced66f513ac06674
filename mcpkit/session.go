package mcpkit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/semaphore"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// A Session is a conversation with one server, over successive connections if
// necessary. Its methods may be called concurrently.
//
// Each request is bounded by ctx and by the time-out of the server's definition or of
// the Manager. A request whose context ends is cancelled at the server; the connection
// stays. A request in flight when the connection is lost fails with the cause. It is
// not repeated, because the server may have executed it. The next request reconnects.
type Session struct {
	m      *Manager
	def    *mcpjson.Server
	stream io.ReadWriteCloser // passed to ConnectIO; otherwise nil

	// life ends with Close. It bounds connections, requests and questions of the
	// server.
	life   context.Context
	cancel context.CancelCauseFunc
	conns  sync.WaitGroup // goroutines that wait for the end of connections

	pending    chan struct{} // holds a value for each request in flight
	connecting chan struct{} // holds a value while a connection is made
	// methodLock is held in part by each request, and exclusively to register a method
	// with the SDK, which looks methods up without a lock.
	methodLock    *semaphore.Weighted
	dropped       atomic.Int64 // notifications dropped because the queue was full
	tasks         taskTools
	questionClock questionClock

	mu              sync.Mutex
	connection      *connection      // guarded by mu: nil until connected, and after a loss
	wasConnected    bool             // guarded by mu: a connection was made before
	lastResubscribe time.Time        // guarded by mu: the last reconnection for a lost subscription
	methods         map[string]bool  // guarded by mu: methods that the SDK does not know
	level           mcp.LoggingLevel // guarded by mu: the last level that was set
	subscriptions   map[string]bool  // guarded by mu: URIs of resources
}

// drainTimeout bounds the wait for the end of a stream after the response. Most servers
// send both at once.
const drainTimeout = time.Second

// methodLockSize exceeds the number of requests that can be in flight.
const methodLockSize = 1 << 30

// connection is one connection to the server.
type connection struct {
	cs      *mcp.ClientSession
	client  *mcp.Client
	state   *connState
	retired bool // guarded by Session.mu: it closes when the requests in flight have ended
}

func newSession(m *Manager, def *mcpjson.Server) *Session {
	s := &Session{
		m: m, def: def,
		pending:       make(chan struct{}, m.opts.Limits.PendingRequests),
		connecting:    make(chan struct{}, 1),
		methodLock:    semaphore.NewWeighted(methodLockSize),
		methods:       make(map[string]bool),
		subscriptions: make(map[string]bool),
	}
	s.life, s.cancel = context.WithCancelCause(context.Background())
	return s
}

// Name returns the server's name.
func (s *Session) Name() string { return s.def.Name }

// Definition returns the server's definition. Do not modify it.
func (s *Session) Definition() *mcpjson.Server { return s.def }

// errTimeout is the cause of a request that timed out.
type errTimeout struct {
	server, what string
	after        time.Duration
}

func (e *errTimeout) Error() string {
	return fmt.Sprintf("%s of mcp server %q: no answer within %v", e.what, e.server, e.after)
}

// Timeout implements [net.Error].
func (e *errTimeout) Timeout() bool { return true }

// A gaveUpError is an error that is the consequence of another. It has the text of its cause.
type gaveUpError struct{ cause, consequence error }

func (e *gaveUpError) Error() string { return e.cause.Error() }

func (e *gaveUpError) Unwrap() []error { return []error{e.cause, e.consequence} }

// gaveUp returns the error of an attempt that ended with err, after its context had ended with
// cause. An err that only says that the context had ended adds nothing to the text.
func gaveUp(cause, err error) error {
	_, ended := errors.AsType[*ServerExitedError](err)
	if !ended && (errors.Is(err, cause) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) {
		return &gaveUpError{cause, err}
	}
	return errors.Join(cause, err)
}

// installNotice is the time after which the log says that a server may be downloaded
// before it starts.
const installNotice = 5 * time.Second

// connect returns the current connection, or makes one.
func (s *Session) connect(ctx context.Context) (*connection, error) {
	select {
	case s.connecting <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.connecting }()
	s.mu.Lock()
	l := s.connection
	s.mu.Unlock()
	switch {
	case s.life.Err() != nil:
		return nil, s.closedError()
	case l != nil:
		return l, nil
	}
	limit := s.m.opts.Limits.Connect
	if s.def.MayInstall() {
		limit = max(limit, s.m.opts.Limits.Install)
	}
	limit = cmp.Or(s.m.opts.Timeouts.Connect, s.def.Timeouts.Connect, limit)
	ctx, end := withoutValues(ctx)
	defer end()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, &errTimeout{s.def.Name, "connect", limit})
	defer cancel()
	stop := context.AfterFunc(s.life, cancel)
	defer stop()
	if s.def.MayInstall() {
		notice := time.AfterFunc(min(installNotice, limit/2), func() {
			s.m.log.Warn("mcp server is still starting; its command may be downloading it", "server", s.def.Name, "limit", limit)
		})
		defer notice.Stop()
	}
	l, err := s.dial(ctx)
	switch {
	case err != nil && s.life.Err() != nil:
		return nil, s.closedError()
	case err != nil && ctx.Err() != nil:
		return nil, gaveUp(context.Cause(ctx), err)
	case err != nil:
		return nil, err
	}
	s.mu.Lock()
	if s.life.Err() != nil {
		s.mu.Unlock()
		l.close()
		return nil, s.closedError()
	}
	again := s.wasConnected
	s.connection, s.wasConnected = l, true
	s.mu.Unlock()
	s.restoreState(ctx, l)
	if again {
		s.announceLists(l)
	}
	s.conns.Go(func() {
		err := l.cs.Wait()
		s.retire(l)
		l.state.close()
		if err != nil {
			s.m.log.Debug("connection to mcp server lost", "server", s.def.Name, "err", l.state.safe(err))
		}
	})
	return l, nil
}

// closedError is the error of requests on a closed session.
func (s *Session) closedError() error {
	return fmt.Errorf("use mcp server %q: %w", s.def.Name, ErrClosed)
}

// close closes a connection that is not in use yet.
func (c *connection) close() {
	_ = c.cs.Close() // connState has the cause
	c.state.close()
}

// retire makes the next request reconnect. The connection closes when the requests in
// flight have ended. retire does not wait for that, since it may be called by one of
// them.
func (s *Session) retire(l *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retireLocked(l)
}

func (s *Session) retireLocked(l *connection) {
	if s.connection == l {
		s.connection = nil
	}
	if !l.retired {
		l.retired = true
		s.conns.Go(func() {
			if err := l.cs.Close(); err != nil { // the server was not notified, and will notice
				s.m.log.Debug("close connection to mcp server", "server", s.def.Name, "err", l.state.safe(err))
			}
		})
	}
}

// Close ends the session. Requests in flight fail with [ErrClosed], and the contexts of
// hooks end. Close returns nil when the server's program, if there is one, has exited
// and no hook is running any more. A hook must therefore not call it, except in a
// goroutine.
func (s *Session) Close() error {
	s.mu.Lock()
	s.cancel(ErrClosed)
	if s.connection != nil {
		s.retireLocked(s.connection)
	}
	s.mu.Unlock()
	s.connecting <- struct{}{} // a connection attempt fails now
	<-s.connecting
	s.conns.Wait()
	return nil
}

// Dropped returns the number of notifications that were dropped because the queue for
// the hooks was full.
func (s *Session) Dropped() int64 { return s.dropped.Load() }

// Initialize connects if necessary, and returns the server's description of itself.
func (s *Session) Initialize(ctx context.Context) (*mcp.InitializeResult, error) {
	unlock, err := s.lockMethods(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	l, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	return l.cs.InitializeResult(), nil
}

// Ping checks that the server responds.
func (s *Session) Ping(ctx context.Context) error {
	return s.do(ctx, "ping", func(ctx context.Context, cs *mcp.ClientSession) error { return cs.Ping(ctx, nil) })
}

// listAll reads all pages of a list.
func listAll[T any](ctx context.Context, s *Session, what string, items func(context.Context, *mcp.ClientSession) iter.Seq2[*T, error]) ([]*T, error) {
	return request(ctx, s, what, func(ctx context.Context, cs *mcp.ClientSession) ([]*T, error) {
		return collect(items(ctx, cs), s.m.opts.Limits.List)
	})
}

// collect returns the items of a list of at most limit.
func collect[T any](items iter.Seq2[*T, error], limit int) (list []*T, err error) {
	for item, err := range items {
		if err != nil {
			return nil, err
		}
		if len(list) == limit {
			return nil, fmt.Errorf("the list has more than %d entries", limit)
		}
		if item == nil {
			continue // null
		}
		list = append(list, item)
	}
	return list, nil
}

// Resources returns the server's resources, all pages.
func (s *Session) Resources(ctx context.Context) ([]*mcp.Resource, error) {
	return listAll(ctx, s, "list resources", func(ctx context.Context, cs *mcp.ClientSession) iter.Seq2[*mcp.Resource, error] {
		return cs.Resources(ctx, nil)
	})
}

// ResourceTemplates returns the server's resource templates, all pages.
func (s *Session) ResourceTemplates(ctx context.Context) ([]*mcp.ResourceTemplate, error) {
	return listAll(ctx, s, "list resource templates", func(ctx context.Context, cs *mcp.ClientSession) iter.Seq2[*mcp.ResourceTemplate, error] {
		return cs.ResourceTemplates(ctx, nil)
	})
}

// ReadResource reads a resource.
func (s *Session) ReadResource(ctx context.Context, uri string) (*mcp.ReadResourceResult, error) {
	return request(ctx, s, "read resource", func(ctx context.Context, cs *mcp.ClientSession) (*mcp.ReadResourceResult, error) {
		return cs.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
	})
}

// maxSubscriptions bounds the resources subscribed to at one server.
const maxSubscriptions = 1000

// Subscribe requests a call of Hooks.ResourceUpdated whenever a resource changes. It
// holds for all connections of the session until Unsubscribe. Changes while there is no
// connection are not reported.
func (s *Session) Subscribe(ctx context.Context, uri string) error {
	s.mu.Lock()
	full := !s.subscriptions[uri] && len(s.subscriptions) >= maxSubscriptions
	s.mu.Unlock()
	if full {
		return fmt.Errorf("subscribe of mcp server %q: more than %d resources", s.def.Name, maxSubscriptions)
	}
	err := s.do(ctx, "subscribe", func(ctx context.Context, cs *mcp.ClientSession) error {
		return cs.Subscribe(ctx, &mcp.SubscribeParams{URI: uri})
	})
	if err == nil {
		s.mu.Lock()
		s.subscriptions[uri] = true
		s.mu.Unlock()
	}
	return err
}

// Unsubscribe ends a subscription.
func (s *Session) Unsubscribe(ctx context.Context, uri string) error {
	s.mu.Lock()
	delete(s.subscriptions, uri)
	s.mu.Unlock()
	return s.do(ctx, "unsubscribe", func(ctx context.Context, cs *mcp.ClientSession) error {
		return cs.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: uri})
	})
}

// Prompts returns the server's prompts, all pages.
func (s *Session) Prompts(ctx context.Context) ([]*mcp.Prompt, error) {
	return listAll(ctx, s, "list prompts", func(ctx context.Context, cs *mcp.ClientSession) iter.Seq2[*mcp.Prompt, error] {
		return cs.Prompts(ctx, nil)
	})
}

// GetPrompt renders a prompt with arguments.
func (s *Session) GetPrompt(ctx context.Context, name string, arguments map[string]string) (*mcp.GetPromptResult, error) {
	return request(ctx, s, fmt.Sprintf("get prompt %q", name), func(ctx context.Context, cs *mcp.ClientSession) (*mcp.GetPromptResult, error) {
		return cs.GetPrompt(ctx, &mcp.GetPromptParams{Name: name, Arguments: arguments})
	})
}

// Complete requests completions of an argument.
func (s *Session) Complete(ctx context.Context, params *mcp.CompleteParams) (*mcp.CompleteResult, error) {
	return request(ctx, s, "complete", func(ctx context.Context, cs *mcp.ClientSession) (*mcp.CompleteResult, error) {
		return cs.Complete(ctx, params)
	})
}

// RootsChanged notifies a connected server of the older era that the roots have
// changed. Modern servers ask for the roots each time.
func (s *Session) RootsChanged(ctx context.Context) error {
	s.mu.Lock()
	l := s.connection
	s.mu.Unlock()
	if l == nil || eraOf(l.cs) == Modern {
		return nil
	}
	return s.Notify(ctx, "notifications/roots/list_changed", nil)
}

// SetLoggingLevel sets the minimum level of the server's log messages, for this
// connection and later ones.
func (s *Session) SetLoggingLevel(ctx context.Context, level mcp.LoggingLevel) error {
	s.mu.Lock()
	s.level = level
	s.mu.Unlock()
	return s.do(ctx, "set logging level", func(ctx context.Context, cs *mcp.ClientSession) error {
		return cs.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: level})
	})
}
