// Package client is the host's side of the agent protocol: operations of a guest as Go
// functions, over the byte stream that an engine's guest provides.
//
// The peer is hostile. Everything received is bounded and validated. A violation of the
// protocol closes the connection with an error that wraps ErrLost, and costs neither
// memory nor time. A lost connection is not repaired: dial again with Resume, or end
// the guest.
//
// Where to look: conn.go has the connection, op.go an operation from its Open to its Cancel and
// End, ops.go the operations as functions; calls.go answers the calls of code, dials.go and
// dialconn.go connect the guest to the network.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// ErrLost is wrapped by the error of every operation on a closed connection.
var ErrLost = errors.New("connection to the guest lost")

// errClosed is the cause after Close.
var errClosed = errors.New("closed")

// Dialer opens the stream to the agent. An engine.Guest is one.
type Dialer interface {
	Dial(ctx context.Context) (io.ReadWriteCloser, error)
}

// Options configure a connection.
type Options struct {
	// Hello configures the agent on the guest's first connection. Version and Nonce are
	// set by this package.
	Hello protocol.Hello
	Log   *slog.Logger // nil: none
}

const (
	// helloTime bounds the agent's first answer; a guest boots in less than a second,
	// even under load.
	helloTime = 30 * time.Second
	// cancelTime is how long a canceled operation waits for End, in addition to the
	// grace period of the guest's process.
	cancelTime = 5 * time.Second
	// defaultGrace is the agent's default grace period.
	defaultGrace = 2 * time.Second
	// maxResync bounds the bytes that a resumed connection skips before the agent's
	// answer: far more than can be in flight from the earlier one.
	maxResync = 64 << 20
)

// ErrNoAnswer means that the agent did not answer a cancelled operation in time, so that what it
// began may still run.
var ErrNoAnswer = errors.New("the guest does not respond")

// hostEpoch is the epoch of all frames of the host: only the agent has several connections on
// one Outbox.
const hostEpoch = 0

// Conn is a connection to the agent of a guest. All methods may be called concurrently.
type Conn struct {
	stream io.ReadWriteCloser
	out    *protocol.Outbox
	log    *slog.Logger
	hello  protocol.HelloResult

	mu    sync.Mutex
	ops   map[uint32]*op   // guarded by mu; started, End not yet read
	calls map[uint32]*call // guarded by mu; opened by the agent, End not yet sent
	next  uint32           // guarded by mu
	err   error            // guarded by mu; why the connection ended
	done  chan struct{}    // closed when the connection has ended

	network Network                            // guarded by mu; nil: none
	dials   map[uint32]*dial                   // guarded by mu; opened by the agent, not both ended and peerDone
	lookups map[uint32]context.CancelCauseFunc // guarded by mu; opened by the agent, End not yet sent

	allDialsWindow *protocol.SendWindow // of the Data frames of all dials

	wg sync.WaitGroup // reader, writer, dials and lookups
}

// Open connects to a guest that has just been created and configures its agent. ctx
// bounds the call. Close ends the connection.
func Open(ctx context.Context, d Dialer, o Options) (*Conn, error) {
	return open(ctx, d, o, false)
}

// Resume connects to a guest that has had a connection before: the agent drops the
// operations of that one; kernels and background processes continue.
func Resume(ctx context.Context, d Dialer, o Options) (*Conn, error) {
	return open(ctx, d, o, true)
}

func open(ctx context.Context, d Dialer, o Options, resume bool) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTime)
	defer cancel()
	stream, err := d.Dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial guest: %w", err)
	}
	c := &Conn{
		stream: stream, out: protocol.NewOutbox(stream), log: o.Log,
		ops: make(map[uint32]*op), next: 1, done: make(chan struct{}),
		allDialsWindow: protocol.NewSendWindow(protocol.AllDialsWindow),
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	h := o.Hello
	h.Version, h.Nonce = protocol.Version, protocol.NewNonce()
	if h.Now == 0 {
		h.Now = time.Now().UnixNano()
	}
	nonce := ""
	if resume {
		nonce = h.Nonce
		c.out.Restart(0, protocol.AppendPreamble(nil, nonce))
	}
	c.wg.Add(2)
	go c.write()
	go c.read(nonce)
	if err := c.greet(ctx, h); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// greet performs the first operation. An invalid answer closes the connection.
func (c *Conn) greet(ctx context.Context, h protocol.Hello) error {
	// Otherwise a silent guest would cost the timeout twice.
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		level := slog.LevelWarn
		if errors.Is(ctx.Err(), context.Canceled) {
			level = slog.LevelDebug // the caller no longer wants the guest
		}
		c.endAt(level, context.Cause(ctx))
	})
	defer func() {
		if !stop() {
			<-ended
		}
	}()
	var res protocol.HelloResult
	if err := c.do(ctx, protocol.OpHello, h, nil, nil, 0, &res); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("greet agent: %w", err)
	}
	if res.Version != protocol.Version || res.Nonce != h.Nonce {
		err := fmt.Errorf("%w: hello answered with version %d and nonce %.40q", protocol.ErrFrame, res.Version, res.Nonce)
		c.end(err)
		return fmt.Errorf("greet agent: %w", err)
	}
	c.hello = res
	return nil
}

// Hello returns the agent's answer to Hello.
func (c *Conn) Hello() protocol.HelloResult { return c.hello }

// Done returns a channel that is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns why the connection ended; nil while it has not.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and all its operations, and waits for its goroutines and for
// the calls of its Network. The guest continues. Close may be called more than once.
func (c *Conn) Close() error {
	c.endAt(slog.LevelDebug, errClosed)
	c.wg.Wait()
	return nil
}

// end closes the connection; the first cause counts and is logged as a warning.
func (c *Conn) end(cause error) { c.endAt(slog.LevelWarn, cause) }

// endAt is end with the level at which it logs the cause.
func (c *Conn) endAt(level slog.Level, cause error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = fmt.Errorf("%w: %w", ErrLost, cause)
	c.ops = nil
	c.mu.Unlock()
	// The guest must not get what operations answer once they see that the connection ended:
	// its calls would fail as if only their run had.
	c.out.Close(c.err)
	close(c.done)
	c.stream.Close()
	c.cancelNetwork(c.err)
	c.log.Log(context.Background(), level, "connection to guest ended", "err", cause)
}

func (c *Conn) write() {
	defer c.wg.Done()
	if err := c.out.Run(); err != nil {
		c.end(fmt.Errorf("write to guest: %w", err))
	}
}

// read dispatches incoming frames. It never waits for an operation: the window bounds
// what each may have outstanding.
func (c *Conn) read(nonce string) {
	defer c.wg.Done()
	rd := protocol.NewReader(c.stream)
	if nonce != "" {
		if _, err := rd.Resync(maxResync, func(n string) bool { return n == nonce }); err != nil {
			c.end(fmt.Errorf("find the start of a resumed connection: %w", err))
			return
		}
	}
	for {
		h, p, err := rd.Next()
		if err != nil {
			c.end(fmt.Errorf("read from guest: %w", err))
			return
		}
		if err := c.dispatch(h, p); err != nil {
			c.end(err)
			return
		}
	}
}

// dispatch processes one frame; an error closes the connection.
func (c *Conn) dispatch(h protocol.Header, p []byte) error {
	switch {
	case h.Op == 0 && h.Type == protocol.Credit:
		return c.allDialsWindow.Credit(p)
	case h.Op != 0 && h.Op%2 == 0:
		return c.dispatchGuest(h, p)
	}
	c.mu.Lock()
	o := c.ops[h.Op]
	if o == nil {
		closed := c.err != nil
		c.mu.Unlock()
		if closed {
			return errClosed
		}
		return fmt.Errorf("%w: frame of type %d for unknown operation %d", protocol.ErrFrame, h.Type, h.Op)
	}
	var openCalls error
	if h.Type == protocol.End {
		delete(c.ops, h.Op)
		if o.toolCalls != nil {
			openCalls = o.toolCalls.checkPeersDone()
		}
	}
	c.mu.Unlock()
	if openCalls != nil {
		return openCalls
	}
	switch h.Type {
	case protocol.Data, protocol.EOF:
		if h.Channel < protocol.Stdout {
			return fmt.Errorf("%w: output on channel %d", protocol.ErrFrame, h.Channel)
		}
		err := o.in.Push(h, p)
		if o.abandoned.Load() {
			o.drop()
		}
		return err
	case protocol.Credit:
		return o.window.Credit(p)
	case protocol.End:
		var resp protocol.Response
		if err := json.Unmarshal(p, &resp); err != nil {
			return fmt.Errorf("%w: response of %s: %w", protocol.ErrFrame, o.name, err)
		}
		o.resp = resp
		close(o.end)
		return nil
	default:
		return fmt.Errorf("%w: the guest may not send frames of type %d", protocol.ErrFrame, h.Type)
	}
}

// begin registers an operation under a free id.
func (c *Conn) begin(name protocol.Op, calls *toolCallSet) (*op, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	if len(c.ops) >= protocol.MaxOps {
		return nil, &protocol.Error{Code: protocol.CodeBusy, Message: fmt.Sprintf("%d operations are already running in this box", protocol.MaxOps)}
	}
	for c.ops[c.next] != nil {
		c.next += 2
	}
	o := &op{
		conn: c, name: name, id: c.next, toolCalls: calls,
		in: protocol.NewRecvQueue(protocol.Window), window: protocol.NewSendWindow(protocol.Window), end: make(chan struct{}), quit: make(chan struct{}),
	}
	c.next += 2 // odd numbers stay odd when they wrap
	c.ops[o.id] = o
	return o, nil
}
