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

// A Session is a conversation with one server, over one connection after another if
// need be. Its methods may be called concurrently.
//
// Each request is bounded by the server's time-out or that of the Manager, and by
// ctx; a request that is given up is cancelled at the server and leaves the
// connection as it is. A request that was under way when its connection was lost
// fails with the cause and is not repeated: the server may have done it. The next
// request connects anew.
type Session struct {
	m      *Manager
	def    *mcpjson.Server
	stream io.ReadWriteCloser // of ConnectIO; else nil

	// life ends with Close. Connections are made under it, requests and the server's
	// questions are.
	life   context.Context
	cancel context.CancelCauseFunc
	conns  sync.WaitGroup // what waits for the end of connections

	pending    chan struct{} // holds a value for each request under way
	connecting chan struct{} // holds a value while somebody connects
	// gate is held in part by each request, and whole to make a method known to the
	// SDK, which looks methods up without a lock.
	methodLock    *semaphore.Weighted
	dropped       atomic.Int64 // notifications for which there was no room
	tasks         taskTools
	questionClock questionClock // while the server waits for answers

	mu              sync.Mutex
	connection      *connection      // guarded by mu: nil until connected, and after a loss
	wasConnected    bool             // guarded by mu: there was a connection
	lastResubscribe time.Time        // guarded by mu: when a connection was last given up that was not heard any more
	methods         map[string]bool  // guarded by mu: those that the SDK does not know by itself
	level           mcp.LoggingLevel // guarded by mu: what was asked for last
	subscriptions   map[string]bool  // guarded by mu: the resources that were subscribed to
}

// drainTime is what a server has to end a stream after the answer. Most end both at
// once.
const drainTime = time.Second

// gateSize is more than requests can be under way.
const methodLockSize = 1 << 30

// live is one connection.
type connection struct {
	cs      *mcp.ClientSession
	client  *mcp.Client
	state   *connState
	retired bool // guarded by Session.mu: it is closed once what is under way has ended
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

// Name is the server's.
func (s *Session) Name() string { return s.def.Name }

// Definition is the server's, not to be changed.
func (s *Session) Definition() *mcpjson.Server { return s.def }

// errTimeout is the cause of a request that took too long.
type errTimeout struct {
	server, what string
	after        time.Duration
}

func (e *errTimeout) Error() string {
	return fmt.Sprintf("%s of mcp server %q: no answer within %v", e.what, e.server, e.after)
}

// Timeout marks the error as one, as in package net.
func (e *errTimeout) Timeout() bool { return true }

// connect returns the connection, which it makes if there is none.
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
	limit := cmp.Or(s.m.opts.Timeouts.Connect, s.def.Timeouts.Connect, s.m.opts.Limits.Connect)
	ctx, end := withoutValues(ctx)
	defer end()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, &errTimeout{s.def.Name, "connect", limit})
	defer cancel()
	stop := context.AfterFunc(s.life, cancel)
	defer stop()
	l, err := s.dial(ctx)
	switch {
	case err != nil && s.life.Err() != nil:
		return nil, s.closedError()
	case err != nil && ctx.Err() != nil:
		return nil, errors.Join(context.Cause(ctx), err)
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
			s.m.log.Debug("connection to mcp server lost", "server", s.def.Name, "err", err)
		}
	})
	return l, nil
}

// over is the error of who uses a session that is closed.
func (s *Session) closedError() error {
	return fmt.Errorf("use mcp server %q: %w", s.def.Name, ErrClosed)
}

// close ends a connection that nobody waits for yet.
func (l *connection) close() {
	_ = l.cs.Close() // the link tells more
	l.state.close()
}

// leave has the next request connect anew. The connection is closed once what is
// under way over it has ended, which nobody who may be part of it must wait for.
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
			if err := l.cs.Close(); err != nil { // the server did not hear of it, and will notice
				s.m.log.Debug("close connection to mcp server", "server", s.def.Name, "err", err)
			}
		})
	}
}

// Close ends the session; requests under way fail with [ErrClosed], and the contexts
// of hooks end. It returns nil, when the server's program, if it is one, is gone, also
// one that was just being started, and no hook is called any more: a hook that calls
// it would wait for itself, and has to leave that to a goroutine.
func (s *Session) Close() error {
	s.mu.Lock()
	s.cancel(ErrClosed)
	if s.connection != nil {
		s.retireLocked(s.connection)
	}
	s.mu.Unlock()
	s.connecting <- struct{}{} // whoever connects gives up now
	<-s.connecting
	s.conns.Wait()
	return nil
}

// Dropped is how many notifications of the server were dropped because too many
// waited for the hooks.
func (s *Session) Dropped() int64 { return s.dropped.Load() }

// do makes a request. What is the request's name, for errors.
func (s *Session) do(ctx context.Context, what string, f func(context.Context, *mcp.ClientSession) error) error {
	select {
	case s.pending <- struct{}{}:
		defer func() { <-s.pending }()
	default:
		return fmt.Errorf("%s of mcp server %q: too many pending requests (limit: %d)", what, s.def.Name, cap(s.pending))
	}
	leave, err := s.lockMethods(ctx)
	if err != nil {
		return err
	}
	defer leave()
	for again := false; ; again = true {
		l, err := s.connect(ctx)
		if err != nil {
			return err
		}
		var taken atomic.Bool
		err = s.attempt(context.WithValue(ctx, sentKey{}, &taken), what, l, f)
		missing := errors.Is(err, mcp.ErrSessionMissing)
		if missing || errors.Is(err, mcp.ErrConnectionClosed) {
			s.retire(l)
			// Either the server does not know the session, and has not looked at the
			// request, or the connection was lost before, and it was not sent. A request
			// that only hears that another has met an unknown session may have been done.
			if !again && s.stream == nil && (!missing || !taken.Load()) {
				continue
			}
		}
		return err
	}
}

// takenKey is for an *atomic.Bool that is set once a server over HTTP may have looked
// at the request.
type sentKey struct{}

func (s *Session) attempt(ctx context.Context, what string, l *connection, f func(context.Context, *mcp.ClientSession) error) error {
	limit := cmp.Or(s.m.opts.Timeouts.Request, s.def.Timeouts.Request, s.m.opts.Limits.Request)
	call, end := s.withTimeout(ctx, limit, &errTimeout{s.def.Name, what, limit})
	err := f(call, l.cs)
	gaveUp := context.Cause(call)
	l.state.notifications.settle()
	end(err == nil)
	if err == nil {
		return nil
	}
	if gaveUp != nil {
		return gaveUp
	}
	if why := l.state.readError(); why != nil && !isAnswer(err) {
		return fmt.Errorf("%s of mcp server %q: %w", what, s.def.Name, errors.Join(why, err))
	}
	return fmt.Errorf("%s of mcp server %q: %w", what, s.def.Name, err)
}

// within bounds a request by ctx and by limit, to which the time does not count in
// which the server waits for an answer of its own. So that no server can have a
// request wait for ever by asking again and again, as many questions as it may ask in
// rounds are the most that are waited for.
//
// The stream of an answer over HTTP is read to its end after the answer has been given.
// If it were cut off by this context or the caller's, so would be the connection, and
// the next request would have to make another. So end leaves the stream of an answer
// a while.
func (s *Session) withTimeout(ctx context.Context, limit time.Duration, timeout error) (call context.Context, end func(answered bool)) {
	call, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stopped := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	closed := context.AfterFunc(s.life, func() { cancel(s.closedError()) })
	stop := func() { stopped(); closed() }
	begun, paused := time.Now(), s.questionClock.length()
	last := begun.Add(limit + maxInputRounds*s.m.opts.Limits.Question)
	var (
		mu    sync.Mutex
		over  bool        // guarded by mu
		timer *time.Timer // guarded by mu
	)
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(limit, func() {
		mu.Lock()
		defer mu.Unlock()
		left := limit - (time.Since(begun) - (s.questionClock.length() - paused))
		if over || left <= 0 || time.Now().After(last) {
			cancel(timeout) // which nobody hears of what is over
			return
		}
		timer.Reset(left)
	})
	return call, func(answered bool) {
		stop()
		mu.Lock()
		defer mu.Unlock()
		over = true
		if answered {
			timer.Reset(drainTime)
			return
		}
		timer.Stop()
		cancel(nil)
	}
}

// enter holds the gate in part, as whoever uses a connection does.
func (s *Session) lockMethods(ctx context.Context) (leave func(), err error) {
	if err := s.methodLock.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	return func() { s.methodLock.Release(1) }, nil
}

// request does a request that has a result.
func request[R any](ctx context.Context, s *Session, what string, f func(context.Context, *mcp.ClientSession) (R, error)) (res R, err error) {
	err = s.do(ctx, what, func(ctx context.Context, cs *mcp.ClientSession) (err error) {
		res, err = f(ctx, cs)
		return err
	})
	return res, err
}

// Initialize connects, if need be, and returns what the server said of itself.
func (s *Session) Initialize(ctx context.Context) (*mcp.InitializeResult, error) {
	leave, err := s.lockMethods(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	l, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	return l.cs.InitializeResult(), nil
}

// Ping asks the server for a sign of life.
func (s *Session) Ping(ctx context.Context) error {
	return s.do(ctx, "ping", func(ctx context.Context, cs *mcp.ClientSession) error { return cs.Ping(ctx, nil) })
}

// all reads a list to its end.
func listAll[T any](ctx context.Context, s *Session, what string, items func(context.Context, *mcp.ClientSession) iter.Seq2[*T, error]) ([]*T, error) {
	return request(ctx, s, what, func(ctx context.Context, cs *mcp.ClientSession) (list []*T, err error) {
		for item, err := range items(ctx, cs) {
			if err != nil {
				return nil, err
			}
			if len(list) == s.m.opts.Limits.List {
				return nil, fmt.Errorf("the list has more than %d entries", len(list))
			}
			if item == nil {
				continue // null in a list is nothing
			}
			list = append(list, item)
		}
		return list, nil
	})
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

// maxWatched bounds the resources of a server that are subscribed to.
const maxSubscriptions = 1000

// Subscribe asks to be told, through the hooks, when a resource changes. It holds
// for all connections of the session until Unsubscribe; while there is none, nothing
// is told.
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

// Unsubscribe ends what Subscribe began.
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

// GetPrompt gets a prompt with its arguments filled in.
func (s *Session) GetPrompt(ctx context.Context, name string, arguments map[string]string) (*mcp.GetPromptResult, error) {
	return request(ctx, s, fmt.Sprintf("get prompt %q", name), func(ctx context.Context, cs *mcp.ClientSession) (*mcp.GetPromptResult, error) {
		return cs.GetPrompt(ctx, &mcp.GetPromptParams{Name: name, Arguments: arguments})
	})
}

// Complete asks for completions of an argument.
func (s *Session) Complete(ctx context.Context, params *mcp.CompleteParams) (*mcp.CompleteResult, error) {
	return request(ctx, s, "complete", func(ctx context.Context, cs *mcp.ClientSession) (*mcp.CompleteResult, error) {
		return cs.Complete(ctx, params)
	})
}

// RootsChanged tells a server to ask for the roots again, if it is one of the older
// era and connected; modern ones ask each time.
func (s *Session) RootsChanged(ctx context.Context) error {
	s.mu.Lock()
	l := s.connection
	s.mu.Unlock()
	if l == nil || eraOf(l.cs) == Modern {
		return nil
	}
	return s.Notify(ctx, "notifications/roots/list_changed", nil)
}

// SetLoggingLevel says which of its log messages the server should send, over this
// connection and those after it.
func (s *Session) SetLoggingLevel(ctx context.Context, level mcp.LoggingLevel) error {
	s.mu.Lock()
	s.level = level
	s.mu.Unlock()
	return s.do(ctx, "set logging level", func(ctx context.Context, cs *mcp.ClientSession) error {
		return cs.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: level})
	})
}
