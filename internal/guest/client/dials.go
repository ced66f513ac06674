package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// Network serves the connections of the guest's programs. Its methods may be called
// concurrently. The guest is hostile: it chooses every name, port and byte.
type Network interface {
	// Lookup decides whether the guest may dial name, for which protocol.ValidName is
	// true. ctx ends with the connection to the agent, or when the guest no longer
	// waits. At most protocol.MaxLookups lookups of one guest run concurrently.
	Lookup(ctx context.Context, name string) protocol.LookupResult
	// Serve serves one connection; d.Check is nil. It owns c until it returns, and must
	// have stopped using c by then. c also has the method CloseWrite() error. ctx ends with
	// the connection to the agent, or when the program has closed its end; Serve must
	// return soon afterwards. An error that wraps syscall.ECONNRESET resets the
	// program's connection; otherwise the program sees the end of the stream. At most
	// protocol.MaxDials connections of one guest are served concurrently.
	Serve(ctx context.Context, d protocol.Dial, c net.Conn) error
}

// SetNetwork makes n answer the guest's dials and lookups. It must be called before
// Configure, and at most once. Without it, a dial or lookup closes the connection.
func (c *Conn) SetNetwork(n Network) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.network != nil {
		panic("client: SetNetwork called twice")
	}
	c.network = n
}

// Configure sends network settings to the agent. It may be called again at any time; the
// settings end with this connection. If the agent has no support for a network, the
// error wraps errors.ErrUnsupported.
func (c *Conn) Configure(ctx context.Context, s protocol.Network) error {
	if err := s.Check(); err != nil {
		return fmt.Errorf("configure network of guest: %w", err)
	}
	if !slices.Contains(c.hello.Features, protocol.FeatureNetwork) {
		return fmt.Errorf("configure network of guest: its agent has no support for it: %w", errors.ErrUnsupported)
	}
	return c.do(ctx, protocol.OpNetwork, s, nil, nil, 0, nil)
}

// errProgramClosed is the cause of a dial's context after the program's end.
var errProgramClosed = fmt.Errorf("the program in the guest closed its connection: %w", syscall.ECONNRESET)

// dial is a connection that a program in the guest opened.
type dial struct {
	*dialConn
	cancel context.CancelCauseFunc

	peerDone bool // guarded by Conn.mu: the agent sends no more data
	ended    bool // guarded by Conn.mu: End has been sent; forgotten once peerDone
}

// openDialLocked starts to serve a dial. Conn.mu is held.
func (c *Conn) openDialLocked(id uint32, raw json.RawMessage) error {
	var x protocol.Dial
	if err := json.Unmarshal(raw, &x); err != nil {
		return fmt.Errorf("%w: invalid dial", protocol.ErrFrame)
	}
	if err := x.Check(); err != nil {
		return fmt.Errorf("%w: %w", protocol.ErrFrame, err)
	}
	switch {
	case c.network == nil:
		return fmt.Errorf("%w: a dial of a guest that has no network", protocol.ErrFrame)
	case len(c.dials) >= protocol.MaxDials:
		return fmt.Errorf("%w: more than %d dials at the same time", protocol.ErrFlow, protocol.MaxDials)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	d := &dial{cancel: cancel, dialConn: newDialConn(ctx, c, id, x)}
	if c.dials == nil {
		c.dials = make(map[uint32]*dial)
	}
	c.dials[id] = d
	n := c.network
	c.wg.Go(func() { d.end(n.Serve(ctx, x, d.dialConn)) }) // read, which is the caller, is part of wg
	return nil
}

// dispatchDial processes a frame of a dial. An error closes the connection. The agent
// ends the data of a dial with EOF or Cancel, after End at the latest, and sends no data afterwards.
func (c *Conn) dispatchDial(d *dial, h protocol.Header, p []byte) error {
	c.mu.Lock()
	peerDone, ended := d.peerDone, d.ended
	c.mu.Unlock()
	switch {
	case h.Type == protocol.Credit:
		return d.window.Credit(p)
	case h.Type == protocol.Cancel:
		d.cancel(errProgramClosed)
		c.markDialPeerDone(d)
		return nil
	case h.Type != protocol.Data && h.Type != protocol.EOF, h.Channel != protocol.Body:
		return fmt.Errorf("%w: the guest may not send frames of type %d on channel %d of a dial", protocol.ErrFrame, h.Type, h.Channel)
	case peerDone:
		return fmt.Errorf("%w: data after the end of dial %d", protocol.ErrFrame, h.Op)
	}
	if err := d.in.Push(h, p); err != nil {
		return err
	}
	if ended { // the data crossed the End; no credit is due for it
		d.in.Take(nil, nil)
	}
	if h.Type == protocol.EOF {
		c.markDialPeerDone(d)
	}
	return nil
}

func (c *Conn) markDialPeerDone(d *dial) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d.peerDone = true
	if d.ended {
		delete(c.dials, d.id)
	}
}

// end sends End, after which the dial sends nothing.
func (d *dial) end(err error) {
	d.cancel(net.ErrClosed)
	d.Close()
	resp := protocol.Response{Result: json.RawMessage("{}")}
	if errors.Is(err, syscall.ECONNRESET) {
		resp = protocol.Response{Error: &protocol.Error{Code: protocol.CodeLost, Message: "connection reset"}}
	}
	p, err := json.Marshal(resp)
	if err != nil {
		panic(err) // of constants: cannot fail
	}
	d.writeMu.Lock() // a write in progress has been woken
	defer d.writeMu.Unlock()
	c := d.conn
	c.mu.Lock()
	d.ended = true
	if d.peerDone {
		delete(c.dials, d.id)
	}
	c.mu.Unlock()
	d.in.Take(nil, nil) // frees what nobody will read
	c.putLast(protocol.Header{Type: protocol.End, Op: d.id}, p)
}

// openLookupLocked starts to answer a lookup. Conn.mu is held.
func (c *Conn) openLookupLocked(id uint32, raw json.RawMessage) error {
	var x protocol.Lookup
	if err := json.Unmarshal(raw, &x); err != nil || !protocol.ValidName(x.Name) {
		return fmt.Errorf("%w: invalid lookup of %.80q", protocol.ErrFrame, x.Name)
	}
	switch {
	case c.network == nil:
		return fmt.Errorf("%w: a lookup of a guest that has no network", protocol.ErrFrame)
	case len(c.lookups) >= protocol.MaxLookups:
		return fmt.Errorf("%w: more than %d lookups at the same time", protocol.ErrFlow, protocol.MaxLookups)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	if c.lookups == nil {
		c.lookups = make(map[uint32]context.CancelCauseFunc)
	}
	c.lookups[id] = cancel
	n := c.network
	c.wg.Go(func() {
		res := n.Lookup(ctx, x.Name)
		cancel(nil)
		raw, err := json.Marshal(res)
		if err != nil {
			panic(err) // of strings and numbers: cannot fail
		}
		p, err := json.Marshal(protocol.Response{Result: raw})
		if err != nil {
			panic(err) // likewise
		}
		c.mu.Lock()
		delete(c.lookups, id)
		c.mu.Unlock()
		c.putFrame(protocol.Header{Type: protocol.End, Op: id}, p)
	})
	return nil
}

// cancelNetwork ends the dials and lookups of a connection that has ended.
func (c *Conn) cancelNetwork(cause error) {
	c.mu.Lock()
	cancels := make([]context.CancelCauseFunc, 0, len(c.dials)+len(c.lookups))
	for _, d := range c.dials {
		cancels = append(cancels, d.cancel)
	}
	for _, cancel := range c.lookups {
		cancels = append(cancels, cancel)
	}
	c.mu.Unlock()
	for _, cancel := range cancels {
		cancel(cause)
	}
}

// putFrame sends a frame without waiting. If the guest does not read, it closes the
// connection.
func (c *Conn) putFrame(h protocol.Header, p []byte) { c.added(c.out.AddNow(hostEpoch, h, p)) }

// putLast is putFrame for a frame that follows the Data frames of a dial.
func (c *Conn) putLast(h protocol.Header, p []byte) { c.added(c.out.AddBulkNow(hostEpoch, h, p)) }

// added completes an addition to the outbox that returned err.
func (c *Conn) added(err error) {
	if errors.Is(err, protocol.ErrStuck) {
		c.end(fmt.Errorf("write to guest: %w", err))
	}
	c.out.Wake()
}
