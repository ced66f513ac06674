package agent

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/netdoor"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// hostDial is a connection of a program that the host serves. It implements
// netdoor.Stream.
type hostDial struct {
	conn   *connection
	id     uint32
	in     *protocol.RecvQueue
	window *protocol.SendWindow
	ctx    context.Context // ends with End, Cancel and the connection
	cancel context.CancelCauseFunc

	mu          sync.Mutex // held while Data, EOF and Cancel are added
	writeClosed bool       // guarded by mu; EOF or Cancel was added

	writeEnded bool // guarded by connection.mu; as writeClosed
	ended      bool // guarded by connection.mu; End was read; the id is free once writeEnded, too
}

// errGone is the cause of a dial's end after Cancel.
var errGone = errors.New("the program is gone")

// Dial implements netdoor.Host.
func (c *connection) Dial(x protocol.Dial) (netdoor.Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.dials) >= protocol.MaxDials {
		return nil, failf(protocol.CodeBusy, "%d connections are open already", protocol.MaxDials)
	}
	id, err := c.openLocked(protocol.OpDial, x)
	if err != nil {
		return nil, err
	}
	d := &hostDial{conn: c, id: id, in: protocol.NewRecvQueue(protocol.DialWindow), window: protocol.NewSendWindow(protocol.DialWindow)}
	d.ctx, d.cancel = context.WithCancelCause(c.ctx)
	if c.dials == nil {
		c.dials = make(map[uint32]*hostDial)
	}
	c.dials[id] = d
	c.a.out.Wake()
	return d, nil
}

// handleDial processes a frame of a dial.
func (c *connection) handleDial(d *hostDial, h protocol.Header, p []byte) error {
	switch h.Type {
	case protocol.Data, protocol.EOF:
		if h.Type == protocol.Data {
			c.creditDials(len(p))
		}
		if d.ctx.Err() != nil { // the program is gone
			return nil
		}
		return d.in.Push(h, p)
	case protocol.Credit:
		return d.window.Credit(p)
	case protocol.End:
		var resp protocol.Response
		if err := json.Unmarshal(p, &resp); err != nil {
			return fmt.Errorf("%w: response of a dial: %w", protocol.ErrFrame, err)
		}
		c.mu.Lock()
		if d.ended = true; d.writeEnded {
			delete(c.dials, d.id)
		}
		c.mu.Unlock()
		if resp.Error != nil {
			d.cancel(resp.Error)
		} else {
			d.cancel(netdoor.ErrEnded)
		}
		return nil
	default:
		return fmt.Errorf("%w: frame of type %d for a dial", protocol.ErrFrame, h.Type)
	}
}

// creditDials gives the host credit for a Data frame of a dial with n bytes that was read, as soon as a
// quarter of the window is used.
func (c *connection) creditDials(n int) {
	c.uncredited += protocol.Cost(n)
	if c.uncredited < protocol.AllDialsWindow/4 {
		return
	}
	c.a.out.AddNow(c.epoch, protocol.Header{Type: protocol.Credit}, binary.BigEndian.AppendUint32(nil, uint32(c.uncredited)))
	c.a.out.Wake()
	c.uncredited = 0
}

// Context implements netdoor.Stream.
func (d *hostDial) Context() context.Context { return d.ctx }

// Write implements netdoor.Stream.
func (d *hostDial) Write(p []byte) (done int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.conn.a.out
	for len(p) > 0 {
		if d.ctx.Err() != nil {
			return done, context.Cause(d.ctx)
		}
		if d.writeClosed {
			return done, io.ErrClosedPipe
		}
		n, err := d.window.Take(min(len(p), protocol.MaxDialFrame), d.ctx.Done())
		if err == nil {
			err = out.AddBulk(d.conn.epoch, d.ctx.Done(), protocol.Header{Type: protocol.Data, Channel: protocol.Body, Op: d.id}, p[:n])
		}
		if errors.Is(err, protocol.ErrStopped) {
			continue // for the reason
		}
		if err != nil {
			return done, err
		}
		out.Flush() // a failed write ends the stream; its reader sees that
		p, done = p[n:], done+n
	}
	return done, nil
}

// CloseWrite implements netdoor.Stream.
func (d *hostDial) CloseWrite() {
	d.endWrite(protocol.Header{Type: protocol.EOF, Channel: protocol.Body, Op: d.id})
}

// Cancel implements netdoor.Stream.
func (d *hostDial) Cancel() {
	d.cancel(errGone) // ends a Write in progress
	d.endWrite(protocol.Header{Type: protocol.Cancel, Op: d.id})
}

// endWrite adds an EOF or Cancel, after which no data follow. The last one is a Cancel, if
// any.
func (d *hostDial) endWrite(h protocol.Header) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.writeEnded && d.ended || d.writeClosed && h.Type == protocol.EOF {
		return // the id may be another's by now
	}
	d.writeClosed, d.writeEnded = true, true
	if d.ended {
		delete(c.dials, d.id)
	}
	c.a.out.AddBulkNow(c.epoch, h, nil) // a failure means that the connection has ended
	c.a.out.Wake()
}

// WriteTo implements netdoor.Stream.
func (d *hostDial) WriteTo(w io.Writer) (done int64, err error) {
	var data []byte
	var items []protocol.Item
	over := d.ctx.Done()
	for {
		data, items = d.in.Take(data, items)
		if len(data) > 0 {
			n, err := w.Write(data)
			if done += int64(n); err != nil {
				return done, err
			}
		}
		var credit uint32
		for _, it := range items {
			if it.EOF {
				return done, nil
			}
			credit += d.in.Consume(it)
		}
		if credit > 0 {
			d.conn.a.out.AddNow(d.conn.epoch, protocol.Header{Type: protocol.Credit, Op: d.id}, binary.BigEndian.AppendUint32(nil, credit))
			d.conn.a.out.Wake()
		}
		if len(items) > 0 {
			continue
		}
		if over == nil {
			return done, nil
		}
		select {
		case <-d.in.Wake:
		case <-over:
			if err := context.Cause(d.ctx); err != netdoor.ErrEnded {
				return done, err
			}
			over = nil // everything was received before End
		}
	}
}

// hostLookup is a question about a name.
type hostLookup struct {
	end chan struct{}         // closed when End has been read
	res protocol.LookupResult // set before end is closed
	err error                 // set before end is closed
}

// Lookup implements netdoor.Host.
func (c *connection) Lookup(ctx context.Context, name string) (protocol.LookupResult, error) {
	l := &hostLookup{end: make(chan struct{})}
	c.mu.Lock()
	if len(c.lookups) >= protocol.MaxLookups {
		c.mu.Unlock()
		return l.res, failf(protocol.CodeBusy, "%d lookups are in progress already", protocol.MaxLookups)
	}
	id, err := c.openLocked(protocol.OpLookup, protocol.Lookup{Name: name})
	if err == nil {
		if c.lookups == nil {
			c.lookups = make(map[uint32]*hostLookup)
		}
		c.lookups[id] = l
	}
	c.mu.Unlock()
	if err != nil {
		return l.res, err
	}
	c.a.out.Wake()
	select {
	case <-l.end:
		return l.res, l.err
	case <-c.ctx.Done():
		return l.res, context.Cause(c.ctx)
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lookups[id] == l { // the id is in use until End
		c.a.out.AddNow(c.epoch, protocol.Header{Type: protocol.Cancel, Op: id}, nil)
		c.a.out.Wake()
	}
	return l.res, context.Cause(ctx)
}

// handleLookup processes a frame of a lookup.
func (c *connection) handleLookup(id uint32, l *hostLookup, h protocol.Header, p []byte) error {
	if h.Type != protocol.End {
		return fmt.Errorf("%w: frame of type %d for a lookup", protocol.ErrFrame, h.Type)
	}
	var resp protocol.Response
	if err := json.Unmarshal(p, &resp); err != nil {
		return fmt.Errorf("%w: response of a lookup: %w", protocol.ErrFrame, err)
	}
	if resp.Error != nil {
		l.err = resp.Error
	} else if err := json.Unmarshal(resp.Result, &l.res); err != nil {
		return fmt.Errorf("%w: result of a lookup: %w", protocol.ErrFrame, err)
	}
	c.mu.Lock()
	delete(c.lookups, id)
	c.mu.Unlock()
	close(l.end)
	return nil
}
