package client

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// A Host answers the calls of a run's code.
type Host interface {
	// Call answers one call. The guest chose method and args; args has at most
	// protocol.MaxCallArgs bytes. ctx ends when the answer has been sent, and with the run at
	// the latest; Call must return soon afterwards. Up to protocol.MaxCalls calls of one
	// connection run concurrently. The guest sees the text of an error; a *protocol.Error keeps
	// its code. A result may have at most protocol.MaxCallResult bytes.
	Call(ctx context.Context, method string, args []byte) ([]byte, error)
}

// toolCallSet holds the calls of one run. Conn.mu guards its fields.
type toolCallSet struct {
	conn   *Conn
	host   Host
	ctx    context.Context // of the calls; ends with the run, or after its Cancel was sent
	cancel context.CancelCauseFunc
	open   map[uint32]*call
	opened int
	closed bool           // the caller no longer waits; new calls are answered with an error
	wg     sync.WaitGroup // of the calls' goroutines
}

var (
	errRunEnded      = errors.New("the run has ended")
	errCallCancelled = errors.New("canceled by the guest")
)

// newToolCallSet returns the calls of a run that ends with ctx. The end of ctx does not cancel
// the calls at once, see op.cancelOn.
func (c *Conn) newToolCallSet(ctx context.Context, h Host) *toolCallSet {
	s := &toolCallSet{conn: c, host: h, open: make(map[uint32]*call)}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return s
}

// end cancels the calls and waits for their goroutines.
func (s *toolCallSet) end() {
	s.conn.mu.Lock()
	s.closed = true
	s.conn.mu.Unlock()
	s.cancel(errRunEnded)
	s.wg.Wait()
}

// call is an operation that the agent opened.
type call struct {
	conn   *Conn
	set    *toolCallSet
	id     uint32
	method string
	in     *protocol.RecvQueue
	window *protocol.SendWindow
	ctx    context.Context
	cancel context.CancelCauseFunc

	peerDone  bool // guarded by Conn.mu: the agent sends no more data
	abandoned bool // guarded by Conn.mu: its goroutine has ended; End follows once peerDone
}

// dispatchGuest processes a frame of an operation that the agent opened. An error closes
// the connection.
func (c *Conn) dispatchGuest(h protocol.Header, p []byte) error {
	if h.Type == protocol.Open {
		return c.openGuest(h.Op, p)
	}
	c.mu.Lock()
	k, d, lookup := c.calls[h.Op], c.dials[h.Op], c.lookups[h.Op]
	c.mu.Unlock()
	switch {
	case d != nil:
		return c.dispatchDial(d, h, p)
	case lookup != nil && h.Type == protocol.Cancel:
		lookup(errCallCancelled)
		return nil
	}
	return c.dispatchCall(k, h, p)
}

// dispatchCall processes a frame of a call; k is nil if there is none. The agent opens a
// call for a run in progress only, ends its data with EOF or Cancel before the run's End, and
// sends no data afterwards; anything else was not sent by the agent.
func (c *Conn) dispatchCall(k *call, h protocol.Header, p []byte) error {
	c.mu.Lock()
	peerDone := k != nil && k.peerDone
	c.mu.Unlock()
	switch {
	case h.Type == protocol.Credit && k != nil:
		return k.window.Credit(p)
	case h.Type == protocol.Cancel && k != nil:
		k.cancel(errCallCancelled)
		c.markPeerDone(k)
		return nil
	case h.Type == protocol.Credit, h.Type == protocol.Cancel:
		return nil // it crossed the End
	case h.Type != protocol.Data && h.Type != protocol.EOF, h.Channel != protocol.Body:
		return fmt.Errorf("%w: the guest may not send frames of type %d on channel %d of a call", protocol.ErrFrame, h.Type, h.Channel)
	case k == nil || peerDone:
		return fmt.Errorf("%w: data for call %d, which has none", protocol.ErrFrame, h.Op)
	}
	if err := k.in.Push(h, p); err != nil {
		return err
	}
	if h.Type == protocol.EOF {
		c.markPeerDone(k)
	}
	return nil
}

// openGuest starts an operation of the guest.
func (c *Conn) openGuest(id uint32, p []byte) error {
	var req protocol.Request
	if err := json.Unmarshal(p, &req); err != nil {
		return fmt.Errorf("%w: invalid request of the guest", protocol.ErrFrame)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return errClosed
	case c.calls[id] != nil, c.dials[id] != nil, c.lookups[id] != nil:
		return fmt.Errorf("%w: operation %d is open already", protocol.ErrFrame, id)
	}
	switch req.Op {
	case protocol.OpCall:
		return c.openCallLocked(id, req.Args)
	case protocol.OpDial:
		return c.openDialLocked(id, req.Args)
	case protocol.OpLookup:
		return c.openLookupLocked(id, req.Args)
	}
	return fmt.Errorf("%w: the guest may not open %.40q", protocol.ErrFrame, string(req.Op))
}

// openCallLocked starts a call. Conn.mu is held.
func (c *Conn) openCallLocked(id uint32, raw json.RawMessage) error {
	var x protocol.Call
	if err := json.Unmarshal(raw, &x); err != nil || len(x.Method) > protocol.MaxMethod {
		return fmt.Errorf("%w: invalid call", protocol.ErrFrame)
	}
	run := c.ops[x.Run]
	switch {
	case run == nil || run.toolCalls == nil:
		return fmt.Errorf("%w: a call of operation %d, which may not call", protocol.ErrFrame, x.Run)
	case len(c.calls) >= protocol.MaxCalls:
		return fmt.Errorf("%w: more than %d calls at the same time", protocol.ErrFlow, protocol.MaxCalls)
	case run.toolCalls.opened >= protocol.MaxRunCalls:
		return fmt.Errorf("%w: more than %d calls of one run", protocol.ErrFlow, protocol.MaxRunCalls)
	}
	k := &call{conn: c, set: run.toolCalls, id: id, method: x.Method, in: protocol.NewRecvQueue(protocol.Window), window: protocol.NewSendWindow(protocol.Window)}
	k.ctx, k.cancel = context.WithCancelCause(k.set.ctx)
	if c.calls == nil {
		c.calls = make(map[uint32]*call)
	}
	c.calls[id], k.set.open[id] = k, k
	k.set.opened++
	if k.set.closed {
		k.abandoned = true // a run that the caller gave up
		return nil
	}
	k.set.wg.Go(k.serve)
	return nil
}

// markPeerDone records that the agent sends no more data of a call.
func (c *Conn) markPeerDone(k *call) {
	c.mu.Lock()
	k.peerDone = true
	late := k.abandoned
	c.mu.Unlock()
	if late {
		k.finish(context.Cause(k.ctx))
	}
}

// checkPeersDone returns an error if the run has calls for which the agent may still send data.
func (s *toolCallSet) checkPeersDone() error {
	for id, k := range s.open {
		if !k.peerDone {
			return fmt.Errorf("%w: end of a run with the open call %d", protocol.ErrFrame, id)
		}
	}
	return nil
}

// serve answers the call.
func (c *call) serve() {
	args, err := c.readArgs()
	var result []byte
	if err == nil {
		result, err = c.set.host.Call(c.ctx, c.method, args)
	}
	if err == nil && len(result) > protocol.MaxCallResult {
		err = &protocol.Error{Code: protocol.CodeTooLarge, Message: fmt.Sprintf("the result has %d bytes, more than %d", len(result), protocol.MaxCallResult)}
	}
	if err == nil {
		err = c.send(result)
	}
	c.conn.mu.Lock()
	c.abandoned = !c.peerDone
	peerDone := c.peerDone
	c.conn.mu.Unlock()
	if peerDone {
		c.finish(err)
	}
}

// readArgs reads the body. After Cancel and after the end of the run it returns the
// cause.
func (c *call) readArgs() ([]byte, error) {
	var args, data []byte
	var items []protocol.Item
	for {
		data, items = c.in.Take(data, items)
		rest := data
		var credit uint32
		for _, it := range items {
			if len(args)+it.Len > protocol.MaxCallArgs {
				err := fmt.Errorf("%w: more than %d bytes of arguments", protocol.ErrFlow, protocol.MaxCallArgs)
				c.conn.end(err)
				return nil, err
			}
			args = append(args, rest[:it.Len]...)
			rest = rest[it.Len:]
			if it.EOF {
				return args, nil
			}
			credit += c.in.Consume(it)
		}
		if credit > 0 {
			c.conn.putFrame(protocol.Header{Type: protocol.Credit, Op: c.id}, binary.BigEndian.AppendUint32(nil, credit))
		}
		if len(items) > 0 {
			continue
		}
		select {
		case <-c.in.Wake:
		case <-c.ctx.Done():
			return nil, context.Cause(c.ctx)
		case <-c.conn.done:
			return nil, c.conn.Err()
		}
	}
}

// send sends the result, as fast as the agent takes it.
func (c *call) send(p []byte) error {
	for len(p) > 0 {
		n, err := c.window.Take(len(p), c.ctx.Done())
		if err == nil {
			err = c.conn.out.Add(hostEpoch, c.ctx.Done(), protocol.Header{Type: protocol.Data, Channel: protocol.Body, Op: c.id}, p[:n])
		}
		if errors.Is(err, protocol.ErrStopped) {
			err = context.Cause(c.ctx)
		}
		if err != nil {
			return err
		}
		c.conn.out.Wake()
		p = p[n:]
	}
	return nil
}

// finish sends End and forgets the call.
func (c *call) finish(err error) {
	var resp protocol.Response
	if err != nil {
		resp.Error = callError(c.ctx, err)
	}
	p, err := json.Marshal(resp)
	if err != nil {
		panic(err) // of strings: cannot fail
	}
	c.conn.mu.Lock()
	delete(c.conn.calls, c.id)
	delete(c.set.open, c.id)
	c.conn.mu.Unlock()
	c.cancel(nil)
	c.conn.putFrame(protocol.Header{Type: protocol.End, Op: c.id}, p)
}

// maxCallError bounds the text of an error for the guest.
const maxCallError = 8 << 10

func callError(ctx context.Context, err error) *protocol.Error {
	e := &protocol.Error{Code: protocol.CodeInternal, Message: err.Error()}
	if own, ok := errors.AsType[*protocol.Error](err); ok {
		e.Code = own.Code
	} else if ctx.Err() != nil {
		e.Code, e.Message = protocol.CodeCancelled, context.Cause(ctx).Error()
	}
	if len(e.Message) > maxCallError {
		e.Message = string(bytes.ToValidUTF8([]byte(e.Message[:maxCallError]), nil)) + "…"
	}
	return e
}
