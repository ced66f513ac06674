// Package remote implements what engines share whose guests are reached by commands of
// another program, such as an API server: a stream to the agent that survives its
// connections, and the rule that a guest has one stream at a time. Its other end in the guest
// is the helper, internal/guest/pod, which starts the agent.
package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/podlink"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// redialFor bounds the time without a connection that a stream survives.
	redialFor = 2 * time.Minute
	// firstWait and maxWait bound the time between two attempts at a connection.
	firstWait = 50 * time.Millisecond
	maxWait   = 2 * time.Second
	// steadyAfter is how long a connection lasts after which the next one is tried at once.
	steadyAfter = 5 * time.Second
)

// ErrPaused is wrapped by errors of Route.Connect if the guest is paused. A stream waits for
// a paused guest without a limit.
var ErrPaused = errors.New("the guest is paused")

// Route leads to the helper in one guest. Its functions may be called concurrently with
// other methods of the guest.
type Route struct {
	// Connect connects to the helper. The stream closes the connection. ctx bounds the call
	// only. again is set if there was a connection before.
	Connect func(ctx context.Context, again bool) (io.ReadWriteCloser, error)
	// Lost returns an error once the guest has ended or was detached.
	Lost func() error
	// AttemptTimeout bounds one attempt at a further connection.
	AttemptTimeout time.Duration
	// Log gets the breaks of connections, at the level debug.
	Log *slog.Logger
}

// Stream is the stream to an agent. It lasts until Close, until no connection succeeds
// for two minutes, or until the helper, having answered, sends what is no frame: then the error
// of Read and Write is podlink.ErrFrame. Read and Write may be called concurrently with each other and with Close.
type Stream struct {
	route   Route
	id      podlink.SessionID
	session *podlink.Session
	cancel  context.CancelFunc
	stopped sync.WaitGroup
}

// link is a connection that the helper has accepted.
type link struct {
	conn     io.ReadWriteCloser
	gen      podlink.Generation
	received uint64 // bytes of the session that the helper has received
}

// Open opens a stream with a first connection. ctx bounds the call only. The caller closes
// the stream.
func Open(ctx context.Context, route Route) (*Stream, error) {
	s := &Stream{route: route, id: podlink.NewSessionID(), session: podlink.NewSession()}
	first, err := s.connect(ctx, false)
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.stopped.Go(func() { s.run(running, first) })
	return s, nil
}

// connect makes a connection and greets the helper.
func (s *Stream) connect(ctx context.Context, again bool) (link, error) {
	gen, err := s.session.Begin()
	if err != nil {
		return link{}, err
	}
	conn, err := s.route.Connect(ctx, again)
	if err != nil {
		return link{}, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err = podlink.Hello{Session: s.id, Resume: again, Received: gen.Received}.Write(conn)
	var reply podlink.Reply
	if err == nil {
		reply, err = podlink.ReadReply(conn)
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return link{}, fmt.Errorf("greet the helper in the guest: %w", err)
	}
	return link{conn, gen, reply.Received}, nil
}

// run keeps the session connected until it ends, or until no connection succeeds for a
// while.
func (s *Stream) run(ctx context.Context, l link) {
	var wait time.Duration
	for {
		began := time.Now()
		err := s.session.Run(l.gen, l.conn, l.received)
		if ctx.Err() != nil {
			return
		}
		// A further connection would lead to the same program, which does not keep to the protocol.
		// Before a Reply, what is between may write a text of its own: that is a failed attempt.
		if errors.Is(err, podlink.ErrFrame) {
			s.session.Close(fmt.Errorf("the helper in the guest broke the protocol: %w", err))
			return
		}
		s.route.Log.Debug("the connection to a guest broke", logkey.Error, err)
		// A connection that breaks at once is no reason for the next one at once.
		if time.Since(began) >= steadyAfter {
			wait = 0
		}
		if l, err = s.reconnect(ctx, &wait); err != nil {
			s.session.Close(err)
			return
		}
	}
}

// reconnect tries to continue the session, for redialFor. wait is the time before the next
// attempt, which grows.
func (s *Stream) reconnect(ctx context.Context, wait *time.Duration) (link, error) {
	for start := time.Now(); ; {
		select {
		case <-time.After(*wait):
		case <-ctx.Done():
			return link{}, ctx.Err()
		}
		*wait = min(max(firstWait, 2**wait), maxWait)
		trying, cancel := context.WithTimeout(ctx, s.route.AttemptTimeout)
		l, err := s.connect(trying, true)
		cancel()
		switch {
		case err == nil:
			return l, nil
		case ctx.Err() != nil, errors.Is(err, podlink.ErrSuperseded):
			return link{}, err
		case s.route.Lost() != nil:
			<-ctx.Done() // the guest hangs up once its end is known
			return link{}, engine.ErrGone
		case errors.Is(err, ErrPaused):
			start = time.Now()
		case time.Since(start) > redialFor:
			return link{}, fmt.Errorf("no connection to the guest for %v: %w", redialFor, err)
		}
	}
}

// Read reads what the agent has written.
func (s *Stream) Read(p []byte) (int, error) { return s.session.Read(p) }

// Write writes to the agent and blocks while it does not read.
func (s *Stream) Write(p []byte) (int, error) { return s.session.Write(p) }

// Close ends the stream; its reads and writes fail with os.ErrClosed. The agent lives on.
// It may be called repeatedly.
func (s *Stream) Close() error {
	s.cancel()
	s.session.Close(nil)
	s.stopped.Wait()
	return nil
}
