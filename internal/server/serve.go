package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

const (
	// idleLimit is longer than most clients keep an idle connection (Go's 90 seconds), so
	// that none sends into one that the server is about to close.
	idleLimit = 2 * time.Minute
	// maxHeader bounds the header of a request, in bytes; a token may take 16 KiB
	// of it.
	maxHeader = 64 << 10
	// afterGrace bounds how long a shutdown waits for the answers of cancelled calls.
	afterGrace = 2 * time.Second
)

// Serve accepts connections on ln until ctx ends or [Server.Shutdown] is called, then
// drains the server and returns nil.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: s.opts.Limits.Header,
		IdleTimeout:       idleLimit,
		MaxHeaderBytes:    maxHeader,
		ConnContext:       s.connections.opened,
		ConnState:         s.connections.changed,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.mu.Lock()
	s.http = append(s.http, srv)
	s.mu.Unlock()
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ackListener{ln}) }()
	select {
	case err := <-ended:
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return fmt.Errorf("serve %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Limits.Grace)
	defer cancel()
	err := s.Shutdown(grace)
	<-ended
	return err
}

// Shutdown refuses new calls, waits for those in flight until ctx ends, cancels the rest,
// and closes sessions and connections. It may be called again.
func (s *Server) Shutdown(ctx context.Context) error {
	s.draining.Store(true)
	s.stop.Do(func() {
		close(s.stopping)
		if d := s.opts.Tools.Approvals; d != nil {
			d.Stop() // code that waits for a person goes on
		}
		if s.opts.Ending != nil {
			s.opts.Ending()
		}
	})
	idle := s.calls.counted.wait(ctx) && s.posts.wait(ctx)
	if idle {
		s.tasks.Linger(ctx)
		s.posts.wait(ctx) // the polls that Linger waited for
	} else {
		s.log.Warn("cancel calls that outlast the shutdown", logkey.Count, s.calls.counted.value())
	}
	s.calls.cancel(nil, tools.ErrShutdown) // also the streams that only listen

	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterGrace)
	defer cancel()
	s.calls.counted.wait(last)
	s.posts.wait(last)
	s.tasks.Close(last)
	if d := s.opts.Tools.Approvals; d != nil {
		if err := d.Close(last); err != nil {
			s.log.Warn("code still runs", logkey.Error, err)
		}
	}
	s.sessions.removeAll(tools.ErrShutdown)
	s.closing.wait(last)
	s.mu.Lock()
	servers := s.http
	s.http = nil
	s.mu.Unlock()
	var errs []error
	for _, srv := range servers {
		if err := srv.Shutdown(last); err != nil {
			errs = append(errs, srv.Close())
		}
	}
	return errors.Join(errs...)
}
