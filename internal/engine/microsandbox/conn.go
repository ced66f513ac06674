//go:build linux

package microsandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/podlink"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// redialFor bounds the time without a connection that a stream survives.
	redialFor = 2 * time.Minute
	// redialEach bounds one attempt at a new connection, which takes seconds where the
	// processor is emulated.
	redialEach = time.Minute
	// maxRedialWait bounds the time between two attempts.
	maxRedialWait = 2 * time.Second
)

// conn is the stream to an agent. Its session survives the commands of msb that carry it:
// an exec can end while the guest lives, as when its output is read too slowly. The window of
// the session is less than what msb holds, so that this is rare.
type conn struct {
	g       *guest
	id      podlink.SessionID
	session *podlink.Session
	cancel  context.CancelFunc
	stopped sync.WaitGroup
}

// newConn opens a session. ctx bounds the call only.
func newConn(ctx context.Context, g *guest) (*conn, error) {
	c := &conn{g: g, id: podlink.NewSessionID(), session: podlink.NewSession()}
	link, turn, other, err := c.connect(ctx, false)
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.stopped.Go(func() { c.run(running, link, turn, other) })
	return c, nil
}

// connect runs the helper in the guest and greets it. It returns how many bytes the helper
// has received in the session.
func (c *conn) connect(ctx context.Context, resume bool) (*stream, podlink.Turn, uint64, error) {
	turn, err := c.session.Begin()
	if err != nil {
		return nil, turn, 0, err
	}
	msb := c.g.e.msb
	link, err := msb.stream(msb.command(context.Background(), c.g.exec("--stream", "link")...))
	if err != nil {
		return nil, turn, 0, err
	}
	stop := context.AfterFunc(ctx, func() { link.Close() })
	err = podlink.Hello{Session: c.id, Resume: resume, Received: turn.Received}.Write(link)
	var reply podlink.Reply
	if err == nil {
		reply, err = podlink.ReadReply(link)
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		link.Close()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		} else if words := link.words.last(); words != "" {
			err = fmt.Errorf("%w: %s", err, words)
		}
		return nil, turn, 0, fmt.Errorf("greet the helper in the guest: %w", err)
	}
	return link, turn, reply.Received, nil
}

// run keeps the session connected until it ends, or until no connection succeeds for a
// while.
func (c *conn) run(ctx context.Context, link *stream, turn podlink.Turn, other uint64) {
	for {
		err := c.session.Run(turn, link, other)
		if ctx.Err() != nil {
			return
		}
		c.g.e.log.Debug("the connection to a guest broke", logkey.Guest, c.g.id, logkey.Error, err, logkey.Detail, link.words.last())
		if link, turn, other, err = c.reconnect(ctx); err != nil {
			c.session.Close(err)
			return
		}
	}
}

// reconnect tries to continue the session, for redialFor. A paused guest has all the time.
func (c *conn) reconnect(ctx context.Context) (*stream, podlink.Turn, uint64, error) {
	start := time.Now()
	var turn podlink.Turn
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, maxRedialWait) {
		// A command for a guest that has stopped would boot it.
		s, err := c.g.status(ctx)
		switch {
		case err == nil && s.Status == running:
			var link *stream
			var other uint64
			trying, cancel := context.WithTimeout(ctx, redialEach)
			link, turn, other, err = c.connect(trying, true)
			cancel()
			if err == nil {
				return link, turn, other, nil
			}
		case err == nil && s.Status == paused:
			start = time.Now()
		case err == nil:
			err = fmt.Errorf("the guest's status is %q", s.Status)
		}
		switch {
		case ctx.Err() != nil, errors.Is(err, podlink.ErrSuperseded):
			return nil, turn, 0, errors.Join(err, ctx.Err())
		case c.g.lost() != nil:
			<-ctx.Done() // the guest hangs up once its end is known
			return nil, turn, 0, engine.ErrGone
		case time.Since(start) > redialFor:
			return nil, turn, 0, fmt.Errorf("no connection to the guest for %v: %w", redialFor, err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, turn, 0, ctx.Err()
		}
	}
}

// Read reads what the agent has written.
func (c *conn) Read(p []byte) (int, error) { return c.session.Read(p) }

// Write writes to the agent and blocks while it does not read.
func (c *conn) Write(p []byte) (int, error) { return c.session.Write(p) }

// Close ends the stream; its reads and writes fail with os.ErrClosed. The agent lives on.
// It may be called repeatedly.
func (c *conn) Close() error {
	c.cancel()
	c.session.Close(nil)
	c.stopped.Wait()
	return nil
}
