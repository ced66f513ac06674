package server

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/server/stdio"
	"github.com/glovebox-dev/glovebox/internal/server/tasks"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// ServeStdio serves one client over in and out, in both eras of the protocol, and
// returns when the input ends and every answer is written, or when ctx ends. Only
// messages of the protocol are written to out.
func (s *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	// Without a handler, a write to a closed standard output kills the process. Children
	// do not inherit a handler, but they would inherit an ignored signal.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)

	s.stdioSessions.add(1)
	defer s.stdioSessions.add(-1)
	stop := make(chan struct{})
	finished := make(chan struct{})
	defer close(finished)
	go func() {
		select {
		case <-ctx.Done():
		case <-s.stopping:
		case <-finished:
		}
		close(stop)
	}()
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(tools.ErrShutdown)
	calls, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abort(nil)
	var mu sync.Mutex
	var sessions []mcp.Session // guarded by mu
	client := &tools.Client{}
	sessionContext := tools.WithClient(markStdio(tasks.Within(context.WithoutCancel(ctx), life), calls), client)
	transport := &stdio.Transport{
		In: in, Out: out, MaxLine: s.opts.Limits.Line, Log: s.log,
		Stop: stop, StopGrace: s.opts.Limits.Grace,
		Ending: func() {
			if d := s.opts.Tools.Approvals; d != nil {
				d.Leave(client)
			}
			if s.opts.Ending != nil {
				s.opts.Ending()
			}
		},
		Abort: func() {
			abort(tools.ErrShutdown) // for calls that begin later
			mu.Lock()
			defer mu.Unlock()
			s.calls.cancel(func(sess mcp.Session) bool { return slices.Contains(sessions, sess) }, tools.ErrShutdown)
		},
	}
	// The end of ctx is a stop, which calls in flight outlast.
	err := transport.Serve(context.WithoutCancel(ctx), func(t mcp.Transport) (*mcp.ServerSession, error) {
		session, err := s.mcp.Connect(sessionContext, t, nil)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			sessions = append(sessions, session)
		}
		return session, err
	})
	for _, gone := range []error{io.EOF, io.ErrClosedPipe, os.ErrClosed, syscall.EPIPE} {
		if errors.Is(err, gone) {
			return nil // the client is gone, which ends the session without an error
		}
	}
	return err
}
