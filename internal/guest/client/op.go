package client

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// op is an operation in progress.
type op struct {
	conn      *Conn
	name      protocol.Op
	id        uint32
	in        *protocol.RecvQueue
	window    *protocol.SendWindow
	end       chan struct{}     // closed when End has been read
	resp      protocol.Response // set before end is closed
	quit      chan struct{}     // closed when the caller no longer waits
	toolCalls *toolCallSet      // nil: the operation may not call the host

	abandoned atomic.Bool // the caller no longer consumes output
}

// output consumes the output of an operation, in order, in the caller's goroutine. more
// means that the message continues.
type output func(ch protocol.Channel, more bool, p []byte) error

// do starts an operation, sends body, delivers output and decodes the result into res,
// all in the caller's goroutine. When ctx is done it sends Cancel and waits for End for
// the grace period and cancelTime.
func (c *Conn) do(ctx context.Context, name protocol.Op, args any, body io.Reader, out output, grace time.Duration, res any) error {
	return c.doBytes(ctx, name, args, nil, body, nil, out, grace, res)
}

// doBytes is do with a body that is in memory, or begins with bytes that are, and goes
// out with the request in one write. calls may be nil.
func (c *Conn) doBytes(ctx context.Context, name protocol.Op, args any, first []byte, body io.Reader, calls *toolCallSet, out output, grace time.Duration, res any) error {
	o, err := c.start(ctx, name, args, calls)
	if err != nil {
		return err
	}
	defer close(o.quit)
	defer o.cancelOn(ctx)()
	if first != nil || body != nil {
		if err := o.sendBody(ctx, protocol.Body, first, body); err != nil {
			o.sendCancel()
			o.finish(canceledNow, nil, 0, nil)
			return err
		}
	} else {
		c.out.Wake()
	}
	return o.finish(ctx, out, grace, res)
}

// canceledNow is a context that is done.
var canceledNow = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// start starts an operation and adds its Open to the outbox, without Wake.
func (c *Conn) start(ctx context.Context, name protocol.Op, args any, calls *toolCallSet) (*op, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	req := protocol.Request{Op: name}
	var err error
	if args != nil {
		if req.Args, err = json.Marshal(args); err != nil {
			return nil, fmt.Errorf("encode arguments of %s: %w", name, err)
		}
	}
	p, err := json.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", name, err)
	}
	if len(p) > protocol.MaxPayload {
		return nil, &protocol.Error{Code: protocol.CodeTooLarge, Message: fmt.Sprintf("the arguments of %s take %d bytes, more than %d; write a long command to a file and run that", name, len(p), protocol.MaxPayload)}
	}
	o, err := c.begin(name, calls)
	if err != nil {
		return nil, err
	}
	if err := c.out.Add(hostEpoch, ctx.Done(), protocol.Header{Type: protocol.Open, Op: o.id}, p); err != nil {
		c.mu.Lock()
		delete(c.ops, o.id)
		c.mu.Unlock()
		if errors.Is(err, protocol.ErrStopped) {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	return o, nil
}

func (o *op) sendCancel() {
	o.put(protocol.Header{Type: protocol.Cancel, Op: o.id}, nil)
	o.conn.out.Wake()
}

// cancelOn cancels the operation when ctx is done, and then its calls: the code could end
// with the error of a cancelled call before the agent knows that the run is cancelled.
func (o *op) cancelOn(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		o.sendCancel()
		if o.toolCalls != nil {
			o.toolCalls.cancel(context.Cause(ctx))
		}
	})
}

// put sends a frame without waiting. If the guest does not read, it closes the
// connection.
func (o *op) put(h protocol.Header, p []byte) {
	if err := o.conn.out.AddNow(hostEpoch, h, p); errors.Is(err, protocol.ErrStuck) {
		o.conn.end(fmt.Errorf("write to guest: %w", err))
	}
}

// sendBody sends first, then the content of r, then EOF. It stops without an error when
// the operation or ctx has ended: the agent's answer tells why. An error is r's.
func (o *op) sendBody(ctx context.Context, ch protocol.Channel, first []byte, r io.Reader) error {
	stop := make(chan struct{})
	defer close(stop)
	ended := o.sendEnded(ctx, stop, len(first) > protocol.Window-protocol.HeaderSize || r != nil)
	if !o.sendData(ended, ch, first) {
		return nil
	}
	if r != nil {
		o.conn.out.Wake()
		buf := make([]byte, 128<<10)
		for {
			n, err := r.Read(buf)
			if !o.sendData(ended, ch, buf[:n]) {
				return nil
			}
			o.conn.out.Wake()
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
		}
	}
	o.put(protocol.Header{Type: protocol.EOF, Channel: ch, Op: o.id}, nil)
	o.conn.out.Wake()
	return nil
}

// sendEnded returns a channel that is closed when nothing more need be sent. It uses a
// goroutine until stop, unless the body fits the window.
func (o *op) sendEnded(ctx context.Context, stop <-chan struct{}, needed bool) <-chan struct{} {
	if !needed {
		return ctx.Done()
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-ctx.Done():
		case <-o.end:
		case <-o.quit:
		case <-o.conn.done:
		case <-stop:
		}
	}()
	return ended
}

// sendData sends p as the window allows, and returns false when ended is closed or the connection
// fails. The caller wakes the outbox after the last frame.
func (o *op) sendData(ended <-chan struct{}, ch protocol.Channel, p []byte) bool {
	for len(p) > 0 {
		n, err := o.window.Take(len(p), ended)
		if err != nil {
			return false
		}
		if o.conn.out.Add(hostEpoch, ended, protocol.Header{Type: protocol.Data, Channel: ch, Op: o.id}, p[:n]) != nil {
			return false
		}
		if p = p[n:]; len(p) > 0 {
			o.conn.out.Wake()
		}
	}
	return true
}

// finish delivers output until End and decodes the result. An error of out ends the
// operation.
func (o *op) finish(ctx context.Context, out output, grace time.Duration, res any) error {
	var data []byte
	var items []protocol.Item
	var failed error // of out
	var giveUp <-chan time.Time
	cancelled := ctx.Done()
	// take delivers everything received.
	take := func() {
		for data, items = o.in.Take(data, items); len(items) > 0; data, items = o.in.Take(data, items) {
			err := o.deliver(data, items, out)
			if err == nil {
				continue
			}
			failed, out = err, nil
			if errors.Is(err, protocol.ErrFrame) {
				o.conn.end(err)
				failed = fmt.Errorf("%s: %w", o.name, o.conn.Err())
			}
			o.sendCancel()
			giveUp = time.After(grace + cancelTime)
		}
	}
	for {
		select {
		case <-o.in.Wake:
			take()
			continue
		case <-cancelled:
			cancelled = nil
			giveUp = time.After(grace + cancelTime)
			continue
		case <-o.end:
			take() // output received before End
			if failed == nil {
				return o.result(ctx, res)
			}
		case <-giveUp:
			o.abandon()
			if failed == nil {
				failed = fmt.Errorf("%s: %w: %w", o.name, ErrNoAnswer, context.Cause(ctx))
			}
		case <-o.conn.done:
			if failed == nil {
				failed = fmt.Errorf("%s: %w", o.name, o.conn.Err())
			}
		}
		return failed
	}
}

// deliver passes one batch to out and returns its credit. After an error of out, which
// it returns, it drops the rest.
func (o *op) deliver(data []byte, items []protocol.Item, out output) error {
	var failed error
	for _, it := range items {
		p := data[:it.Len]
		data = data[it.Len:]
		if out != nil && failed == nil && !it.EOF {
			failed = out(it.Channel, it.More, p)
		}
		if n := o.in.Consume(it); n > 0 {
			var b [4]byte
			binary.BigEndian.PutUint32(b[:], n)
			o.put(protocol.Header{Type: protocol.Credit, Op: o.id}, b[:])
			o.conn.out.Wake()
		}
	}
	return failed
}

// abandon lets an operation end whenever the agent gets to it. Its id stays in use
// until then; the reader drops its output.
func (o *op) abandon() {
	o.abandoned.Store(true)
	o.drop()
}

// drop discards received data and returns its credit, so that the agent is not blocked.
func (o *op) drop() {
	data, items := o.in.Take(nil, nil)
	o.deliver(data, items, nil)
}

// result decodes the response.
func (o *op) result(ctx context.Context, res any) error {
	if e := o.resp.Error; e != nil {
		if e.Code == protocol.CodeCancelled && ctx.Err() != nil {
			return fmt.Errorf("%s: %w", o.name, context.Cause(ctx))
		}
		return e
	}
	if res == nil {
		return nil
	}
	if len(o.resp.Result) == 0 {
		o.resp.Result = []byte("{}")
	}
	if err := json.Unmarshal(o.resp.Result, res); err != nil {
		err = fmt.Errorf("%w: result of %s: %w", protocol.ErrFrame, o.name, err)
		o.conn.end(err)
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return nil
}
