package agent

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// hostCall is an operation that the agent opened: a question to the host.
type hostCall struct {
	conn   *connection
	id     uint32
	in     *protocol.RecvQueue
	window *protocol.SendWindow
	end    chan struct{}     // closed when End has been read
	resp   protocol.Response // set before end is closed
}

// handleAgentOp processes a frame of an operation that the agent opened.
func (c *connection) handleAgentOp(h protocol.Header, p []byte) error {
	c.mu.Lock()
	k, d, l := c.calls[h.Op], c.dials[h.Op], c.lookups[h.Op]
	c.mu.Unlock()
	switch {
	case k != nil:
		return c.handleCall(k, h, p)
	case d != nil:
		return c.handleDial(d, h, p)
	case l != nil:
		return c.handleLookup(h.Op, l, h, p)
	}
	return fmt.Errorf("%w: frame of type %d for unknown operation %d of the agent", protocol.ErrFrame, h.Type, h.Op)
}

// handleCall processes a frame of a call.
func (c *connection) handleCall(k *hostCall, h protocol.Header, p []byte) error {
	if h.Type == protocol.End {
		c.mu.Lock()
		delete(c.calls, h.Op)
		c.mu.Unlock()
	}
	switch h.Type {
	case protocol.Data:
		return k.in.Push(h, p)
	case protocol.Credit:
		return k.window.Credit(p)
	case protocol.End:
		if err := json.Unmarshal(p, &k.resp); err != nil {
			return fmt.Errorf("%w: response of a call: %w", protocol.ErrFrame, err)
		}
		close(k.end)
		return nil
	default:
		return fmt.Errorf("%w: frame of type %d for a call", protocol.ErrFrame, h.Type)
	}
}

// errInterrupted is the outcome of a call whose connection ended.
var errInterrupted = &protocol.Error{Code: protocol.CodeLost, Message: "the box was hibernated, or its server restarted, during the call; whether the tool ran is unknown"}

// call asks the host. run is an operation in progress that may call, and must not end
// before call returns. When ctx ends, call cancels the question.
func (c *connection) call(ctx context.Context, run uint32, method string, args []byte) ([]byte, error) {
	k, err := c.openCall(run, method)
	if err != nil {
		return nil, err
	}
	var result []byte
	if err = k.send(ctx, args); err == nil {
		result, err = k.receive(ctx)
	}
	select {
	case <-k.end:
	default: // the host sends End when it has read Cancel; until then the id stays in use
		k.put(protocol.Header{Type: protocol.Cancel, Op: k.id}, nil)
	}
	if superseded := errors.Is(context.Cause(c.ctx), protocol.ErrSuperseded); err != nil && (superseded || errors.Is(err, protocol.ErrSuperseded)) {
		err = errInterrupted
	}
	return result, err
}

func (c *connection) openCall(run uint32, method string) (*hostCall, error) {
	k := &hostCall{conn: c, in: protocol.NewRecvQueue(protocol.Window), window: protocol.NewSendWindow(protocol.Window), end: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.calls) >= protocol.MaxCalls {
		return nil, failf(protocol.CodeBusy, "%d calls are already in progress", protocol.MaxCalls)
	}
	var err error
	if k.id, err = c.openLocked(protocol.OpCall, protocol.Call{Run: run, Method: method}); err != nil {
		return nil, err
	}
	if c.calls == nil {
		c.calls = make(map[uint32]*hostCall)
	}
	c.calls[k.id] = k
	return k, nil
}

// openLocked adds the Open of an operation of the agent, without Wake, and returns its id,
// which the caller must register. connection.mu is held.
func (c *connection) openLocked(name protocol.Op, x any) (uint32, error) {
	args, err := json.Marshal(x)
	if err != nil {
		return 0, err
	}
	p, err := json.Marshal(protocol.Request{Op: name, Args: args})
	if err != nil {
		return 0, err
	}
	for c.nextAgentOp == 0 || c.calls[c.nextAgentOp] != nil || c.dials[c.nextAgentOp] != nil || c.lookups[c.nextAgentOp] != nil {
		c.nextAgentOp += 2 // even numbers stay even when they wrap
	}
	id := c.nextAgentOp
	if err := c.a.out.AddNow(c.epoch, protocol.Header{Type: protocol.Open, Op: id}, p); err != nil {
		return 0, err
	}
	c.nextAgentOp += 2
	return id, nil
}

// put sends a frame without waiting. A failure means that the connection has ended.
func (c *hostCall) put(h protocol.Header, p []byte) {
	c.conn.a.out.AddNow(c.conn.epoch, h, p)
	c.conn.a.out.Wake()
}

// send sends the arguments.
func (c *hostCall) send(ctx context.Context, p []byte) error {
	out := c.conn.a.out
	for len(p) > 0 {
		n, err := c.window.Take(len(p), ctx.Done())
		if err == nil {
			err = out.Add(c.conn.epoch, ctx.Done(), protocol.Header{Type: protocol.Data, Channel: protocol.Body, Op: c.id}, p[:n])
		}
		if errors.Is(err, protocol.ErrStopped) {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if p = p[n:]; len(p) > 0 {
			out.Wake()
		}
	}
	c.put(protocol.Header{Type: protocol.EOF, Channel: protocol.Body, Op: c.id}, nil)
	return nil
}

// receive returns the result after End.
func (c *hostCall) receive(ctx context.Context) ([]byte, error) {
	var result, data []byte
	var items []protocol.Item
	take := func() {
		data, items = c.in.Take(data, items)
		var credit uint32
		for _, it := range items {
			credit += c.in.Consume(it)
		}
		result = append(result, data...)
		if credit > 0 {
			c.put(protocol.Header{Type: protocol.Credit, Op: c.id}, binary.BigEndian.AppendUint32(nil, credit))
		}
	}
	for {
		select {
		case <-c.in.Wake:
			if take(); len(result) > protocol.MaxCallResult {
				return nil, failf(protocol.CodeTooLarge, "the result is longer than %d bytes", protocol.MaxCallResult)
			}
		case <-c.end:
			take() // received before End
			if c.resp.Error != nil {
				return nil, c.resp.Error
			}
			return result, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
