package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
	"github.com/glovebox-dev/glovebox/internal/guest/podlink"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// redialFor bounds the time without a connection to the cluster that a stream
	// survives.
	redialFor = 2 * time.Minute
	// redialEach bounds one attempt at a new connection.
	redialEach = 15 * time.Second
)

// conn is the stream to an agent. Its session survives the connections to the cluster.
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
	command, turn, other, err := c.connect(ctx, false)
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.stopped.Go(func() { c.run(running, command, turn, other) })
	return c, nil
}

// connect runs the helper in the Pod and greets it. It returns how many bytes the helper
// has received in the session. The cluster runs commands by the name of a Pod, so that
// another Pod of that name may have got the command: it learns nothing of the session.
func (c *conn) connect(ctx context.Context, resume bool) (*kubeapi.Command, podlink.Turn, uint64, error) {
	turn, err := c.session.Begin()
	if err != nil {
		return nil, turn, 0, err
	}
	command, err := c.g.e.api.Exec(ctx, c.g.e.namespace, c.g.name, containerName, c.g.helper, "link")
	if err != nil {
		return nil, turn, 0, err
	}
	// A UID never comes back: if the Pod is there now, it was when the command started.
	if err := c.g.confirm(ctx); err != nil {
		command.Close()
		return nil, turn, 0, err
	}
	stop := context.AfterFunc(ctx, func() { command.Close() })
	err = podlink.Hello{Session: c.id, Resume: resume, Received: turn.Received}.Write(command)
	var reply podlink.Reply
	if err == nil {
		reply, err = podlink.ReadReply(command)
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		command.Close()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, turn, 0, fmt.Errorf("greet the helper in Pod %s: %w", c.g.name, err)
	}
	return command, turn, reply.Received, nil
}

// run keeps the session connected until it ends, or until no connection succeeds for a
// while.
func (c *conn) run(ctx context.Context, command *kubeapi.Command, turn podlink.Turn, other uint64) {
	for {
		err := c.session.Run(turn, command, other)
		if ctx.Err() != nil {
			return
		}
		c.g.e.log.Debug("the connection to a Pod broke", logkey.Guest, c.g.id, logkey.Error, err)
		if command, turn, other, err = c.reconnect(ctx); err != nil {
			c.session.Close(err)
			return
		}
	}
}

// reconnect tries to continue the session, for redialFor.
func (c *conn) reconnect(ctx context.Context) (*kubeapi.Command, podlink.Turn, uint64, error) {
	start := time.Now()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		trying, cancel := context.WithTimeout(ctx, redialEach)
		command, turn, other, err := c.connect(trying, true)
		cancel()
		switch {
		case err == nil:
			return command, turn, other, nil
		case ctx.Err() != nil, errors.Is(err, podlink.ErrSuperseded):
			return nil, turn, 0, err
		case c.g.lost() != nil:
			<-ctx.Done() // the guest hangs up once its end is known
			return nil, turn, 0, engine.ErrGone
		case time.Since(start) > redialFor:
			return nil, turn, 0, fmt.Errorf("no connection to the Pod for %v: %w", redialFor, err)
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
