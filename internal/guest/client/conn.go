// Package client is the host's end of the agent protocol: operations of a guest
// as Go functions, over the one byte stream that an engine's guest gives.
//
// What is at the other end is hostile. Everything that arrives is bounded and
// checked; whatever breaks the protocol ends the link with an error that wraps
// ErrLost, and costs neither memory nor the caller's patience. A link that was
// lost is not mended: dial again with Resume, or end the guest.
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

// ErrLost is wrapped by the error of every operation on a link that has ended.
var ErrLost = errors.New("link to the guest lost")

// errClosed is the cause when Close ended the link.
var errClosed = errors.New("closed")

// Dialer opens the stream to the agent. An engine.Guest is one.
type Dialer interface {
	Dial(ctx context.Context) (io.ReadWriteCloser, error)
}

// Options are how a link is opened.
type Options struct {
	// Hello configures the agent on the first link of a guest. Version and Nonce
	// are filled in.
	Hello protocol.Hello
	Log   *slog.Logger // nil: none
}

const (
	// helloTime bounds the first answer of an agent; a guest under load boots
	// in less than a second.
	helloTime = 30 * time.Second
	// cancelTime is how long an operation whose context has ended waits for its
	// End, on top of the grace that the guest's process has.
	cancelTime = 5 * time.Second
	// defaultGrace is what the agent takes for a grace of zero.
	defaultGrace = 2 * time.Second
	// maxResync bounds what a resumed link reads before the agent's answer: what
	// was in flight on the earlier link is far less.
	maxResync = 64 << 20
)

// Conn is a live link. All methods may be called concurrently.
type Conn struct {
	conn  io.ReadWriteCloser
	out   *protocol.Outbox
	log   *slog.Logger
	hello protocol.HelloResult

	mu   sync.Mutex
	ops  map[uint32]*op // guarded by mu; begun, End not yet read
	next uint32         // guarded by mu
	err  error          // guarded by mu; why the link ended
	done chan struct{}  // closed when the link has ended

	wg sync.WaitGroup // the reader and the writer
}

// Open dials a guest that has just been created and configures its agent. ctx
// bounds the call. Close ends the link.
func Open(ctx context.Context, d Dialer, o Options) (*Conn, error) {
	return open(ctx, d, o, false)
}

// Resume dials a guest that has had a link before: the agent drops what was
// under way on that one; kernels and background processes live on.
func Resume(ctx context.Context, d Dialer, o Options) (*Conn, error) {
	return open(ctx, d, o, true)
}

func open(ctx context.Context, d Dialer, o Options, resume bool) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTime)
	defer cancel()
	conn, err := d.Dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial guest: %w", err)
	}
	l := &Conn{
		conn: conn, out: protocol.NewOutbox(conn), log: o.Log,
		ops: make(map[uint32]*op), next: 1, done: make(chan struct{}),
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	h := o.Hello
	h.Version, h.Nonce = protocol.Version, protocol.NewNonce()
	if h.Now == 0 {
		h.Now = time.Now().UnixNano()
	}
	nonce := ""
	if resume {
		nonce = h.Nonce
		l.out.Restart(0, protocol.AppendPreamble(nil, nonce))
	}
	l.wg.Add(2)
	go l.write()
	go l.read(nonce)
	if err := l.greet(ctx, h); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// greet is the first operation. What the agent answers wrongly ends the link.
func (l *Conn) greet(ctx context.Context, h protocol.Hello) error {
	// Without this a guest that says nothing would be waited for twice.
	stop := context.AfterFunc(ctx, func() { l.end(context.Cause(ctx)) })
	defer stop()
	var res protocol.HelloResult
	if err := l.do(ctx, protocol.OpHello, h, nil, nil, 0, &res); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("greet agent: %w", err)
	}
	if res.Version != protocol.Version || res.Nonce != h.Nonce {
		err := fmt.Errorf("%w: hello answered with version %d and nonce %.40q", protocol.ErrFrame, res.Version, res.Nonce)
		l.end(err)
		return fmt.Errorf("greet agent: %w", err)
	}
	l.hello = res
	return nil
}

// Hello is what the agent said of itself.
func (l *Conn) Hello() protocol.HelloResult { return l.hello }

// Done is closed when the link has ended.
func (l *Conn) Done() <-chan struct{} { return l.done }

// Err says why the link has ended; it is nil while it has not.
func (l *Conn) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close ends the link and with it every operation, and returns when the link
// holds nothing any more. The guest lives on. Close may be called again.
func (l *Conn) Close() error {
	l.end(errClosed)
	l.wg.Wait()
	return nil
}

// end ends the link; the first cause counts.
func (l *Conn) end(cause error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = fmt.Errorf("%w: %w", ErrLost, cause)
	l.ops = nil
	close(l.done)
	l.mu.Unlock()
	l.out.Close(l.err)
	l.conn.Close()
	if cause != errClosed {
		l.log.Warn("link to guest ended", "err", cause)
	}
}

func (l *Conn) write() {
	defer l.wg.Done()
	if err := l.out.Run(); err != nil {
		l.end(fmt.Errorf("write to guest: %w", err))
	}
}

// read hands out what arrives. It never waits for an operation: what each may
// have outstanding is bounded by its window.
func (l *Conn) read(nonce string) {
	defer l.wg.Done()
	rd := protocol.NewReader(l.conn)
	if nonce != "" {
		if _, err := rd.Resync(maxResync, func(n string) bool { return n == nonce }); err != nil {
			l.end(fmt.Errorf("find the start of a resumed link: %w", err))
			return
		}
	}
	for {
		h, p, err := rd.Next()
		if err != nil {
			l.end(fmt.Errorf("read from guest: %w", err))
			return
		}
		if err := l.dispatch(h, p); err != nil {
			l.end(err)
			return
		}
	}
}

// dispatch handles one frame; an error ends the link.
func (l *Conn) dispatch(h protocol.Header, p []byte) error {
	l.mu.Lock()
	o := l.ops[h.Op]
	if o == nil {
		closed := l.err != nil
		l.mu.Unlock()
		if closed {
			return errClosed
		}
		return fmt.Errorf("%w: frame of type %d for operation %d, which is not under way", protocol.ErrFrame, h.Type, h.Op)
	}
	if h.Type == protocol.End {
		delete(l.ops, h.Op)
	}
	l.mu.Unlock()
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

// begin registers an operation under a free number.
func (l *Conn) begin(name protocol.Op) (*op, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	if len(l.ops) >= protocol.MaxOps {
		return nil, &protocol.Error{Code: protocol.CodeBusy, Message: fmt.Sprintf("%d operations are under way on this box already", protocol.MaxOps)}
	}
	for l.ops[l.next] != nil {
		l.next += 2
	}
	o := &op{
		l: l, name: name, id: l.next,
		in: protocol.NewRecvQueue(), window: protocol.NewSendWindow(), end: make(chan struct{}), quit: make(chan struct{}),
	}
	l.next += 2 // odd numbers stay odd when they wrap
	l.ops[o.id] = o
	return o, nil
}
