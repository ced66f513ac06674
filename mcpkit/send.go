package mcpkit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// ErrNotSent is matched by errors of requests that the server has not received, so that it
// has certainly not executed them. Without it, the server may have executed the request.
var ErrNotSent = errors.New("the request was not sent")

// notSentError is an error that matches ErrNotSent. It has the text of its cause.
type notSentError struct{ error }

func (e notSentError) Unwrap() error { return e.error }

func (notSentError) Is(target error) bool { return target == ErrNotSent }

// do executes a request, reconnecting if necessary. what names it in errors.
func (s *Session) do(ctx context.Context, what string, f func(context.Context, *mcp.ClientSession) error) error {
	return s.doAfter(ctx, what, func(context.Context, *connection) error { return nil }, f)
}

// doAfter is do; it calls before with each connection over which it is about to send the
// request, and does not send it if before fails.
func (s *Session) doAfter(ctx context.Context, what string, before func(context.Context, *connection) error, f func(context.Context, *mcp.ClientSession) error) error {
	select {
	case s.pending <- struct{}{}:
		defer func() { <-s.pending }()
	default:
		return notSentError{fmt.Errorf("%s of mcp server %q: too many pending requests (limit: %d)", what, s.def.Name, cap(s.pending))}
	}
	unlock, err := s.lockMethods(ctx)
	if err != nil {
		return notSentError{err}
	}
	defer unlock()
	for retried := false; ; retried = true {
		l, err := s.connect(ctx)
		if err != nil {
			return notSentError{err}
		}
		var sent atomic.Bool
		if err = before(ctx, l); err == nil {
			var refused bool
			if refused, err = s.roundTrip(context.WithValue(ctx, sentKey{}, &sent), what, l, f); refused {
				return err
			}
		}
		missing := errors.Is(err, mcp.ErrSessionMissing)
		if missing || errors.Is(err, mcp.ErrConnectionClosed) {
			s.retire(l)
			// Either the server does not know the session and has not processed the
			// request, or the connection was lost before the request was sent. If
			// another request found the session unknown, this one may have been
			// executed.
			if !retried && s.stream == nil && (!missing || !sent.Load()) {
				continue
			}
		}
		if err != nil && !sent.Load() {
			err = notSentError{err}
		}
		return err
	}
}

// sentKey is the key of an *atomic.Bool in a context. It is set once a server may have
// received the request.
type sentKey struct{}

// setSent records whether a server may have received the request of ctx, if it has one.
func setSent(ctx context.Context, may bool) {
	if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
		sent.Store(may)
	}
}

// neverConnected reports whether an error of an HTTP request means that it was not sent.
func neverConnected(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return true
	}
	_, refused := errors.AsType[*outbound.Refusal](err)
	return refused
}

// roundTrip sends a request over a connection. refused reports that the error says why
// the connection did not decode the result.
func (s *Session) roundTrip(ctx context.Context, what string, l *connection, f func(context.Context, *mcp.ClientSession) error) (refused bool, err error) {
	own, inFlight := newPendingRequest(ctx)
	defer inFlight.refuse(nil)
	defer l.state.forget(inFlight)
	if err = s.attempt(own, what, l, f); err != nil && own.Err() != nil && ctx.Err() == nil {
		return true, fmt.Errorf("%s of mcp server %q: %w", what, s.def.Name, context.Cause(own))
	}
	return false, err
}

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
	if why := l.state.readError(); why != nil && !isResponse(err) {
		err = errors.Join(why, err)
	}
	return fmt.Errorf("%s of mcp server %q: %w", what, s.def.Name, l.state.safe(err))
}

// withTimeout bounds a request by ctx and by limit. The time during which the server
// waits for answers to its questions does not count, up to the number of questions that
// a server may ask in rounds, so that a server cannot extend a request for ever.
//
// The body of an HTTP response is read to its end after the response was parsed. Ending
// its context then would close the HTTP connection, and the next request would have to
// make another. Therefore end leaves the body some time.
func (s *Session) withTimeout(ctx context.Context, limit time.Duration, timeout error) (call context.Context, end func(answered bool)) {
	call, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stopCaller := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	stopLife := context.AfterFunc(s.life, func() { cancel(s.closedError()) })
	stop := func() { stopCaller(); stopLife() }
	begun, paused := time.Now(), s.questionClock.elapsed()
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
		left := limit - (time.Since(begun) - (s.questionClock.elapsed() - paused))
		if over || left <= 0 || time.Now().After(last) {
			cancel(timeout) // without effect if the request has ended
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
			timer.Reset(drainTimeout)
			return
		}
		timer.Stop()
		cancel(nil)
	}
}

// lockMethods holds the method lock in part, as every user of a connection must.
func (s *Session) lockMethods(ctx context.Context) (unlock func(), err error) {
	if err := s.methodLock.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	return func() { s.methodLock.Release(1) }, nil
}

// request executes a request that has a result.
func request[R any](ctx context.Context, s *Session, what string, f func(context.Context, *mcp.ClientSession) (R, error)) (res R, err error) {
	err = s.do(ctx, what, func(ctx context.Context, cs *mcp.ClientSession) (err error) {
		res, err = f(ctx, cs)
		return err
	})
	return res, err
}
