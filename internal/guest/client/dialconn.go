package client

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// dialConn is the host's end of a connection of a program in the guest. It implements
// [net.Conn], with flow control by the dial's windows.
type dialConn struct {
	conn   *Conn
	id     uint32
	to     dialAddr
	in     *protocol.RecvQueue
	window *protocol.SendWindow
	ctx    context.Context // done when either end is gone
	closed atomic.Bool

	readBy, writeBy *deadline

	readMu sync.Mutex
	data   []byte          // guarded by readMu
	at     int             // guarded by readMu; data[at:] is unread
	items  []protocol.Item // guarded by readMu
	eof    bool            // guarded by readMu

	writeMu sync.Mutex // held while frames are added
	sentEOF bool       // guarded by writeMu
}

var _ net.Conn = (*dialConn)(nil)

func newDialConn(ctx context.Context, c *Conn, id uint32, d protocol.Dial) *dialConn {
	k := &dialConn{
		conn: c, id: id, to: dialAddr(d), ctx: ctx,
		in: protocol.NewRecvQueue(protocol.DialWindow), window: protocol.NewSendWindow(protocol.DialWindow),
		readBy: newDeadline(), writeBy: newDeadline(),
	}
	context.AfterFunc(ctx, func() {
		k.readBy.kill()
		k.writeBy.kill()
	})
	return k
}

// stopped returns why a read or write may not go on, or nil.
func (d *dialConn) stopped(by *deadline) error {
	switch {
	case d.closed.Load():
		return net.ErrClosed
	case d.ctx.Err() != nil:
		return context.Cause(d.ctx)
	case by.passed():
		return os.ErrDeadlineExceeded
	}
	return nil
}

func (d *dialConn) Read(p []byte) (int, error) {
	d.readMu.Lock()
	defer d.readMu.Unlock()
	for {
		if err := d.stopped(d.readBy); err != nil {
			return 0, err
		}
		if d.at < len(d.data) || len(p) == 0 {
			n := copy(p, d.data[d.at:])
			d.at += n
			return n, nil
		}
		if d.eof {
			return 0, io.EOF
		}
		if d.take(); d.at < len(d.data) || d.eof {
			continue
		}
		select {
		case <-d.in.Wake:
		case <-d.readBy.done():
		}
	}
}

// take replaces the batch being read by the next one, which counts as consumed: the
// window bounds both.
func (d *dialConn) take() {
	d.data, d.items = d.in.Take(d.data, d.items)
	d.at = 0
	var credit uint32
	for _, it := range d.items {
		d.eof = d.eof || it.EOF
		credit += d.in.Consume(it)
	}
	if credit > 0 && !d.eof {
		d.conn.putFrame(protocol.Header{Type: protocol.Credit, Op: d.id}, binary.BigEndian.AppendUint32(nil, credit))
	}
}

func (d *dialConn) Write(p []byte) (done int, err error) {
	d.writeMu.Lock()
	defer d.writeMu.Unlock()
	for {
		if err := d.stopped(d.writeBy); err != nil {
			return done, err
		}
		if d.sentEOF {
			return done, net.ErrClosed
		}
		if len(p) == 0 {
			return done, nil
		}
		n, err := d.window.Take(min(len(p), protocol.MaxDialFrame), d.writeBy.done())
		if err == nil {
			err = d.conn.allDialsWindow.TakeAll(n, d.writeBy.done())
		}
		if err == nil { // the window of the link bounds what is pending
			err = d.conn.out.AddBulkNow(hostEpoch, protocol.Header{Type: protocol.Data, Channel: protocol.Body, Op: d.id}, p[:n])
		}
		if errors.Is(err, protocol.ErrStopped) {
			continue // stopped returns the reason
		}
		if err != nil {
			return done, err
		}
		d.conn.out.Wake()
		p, done = p[n:], done+n
	}
}

// CloseWrite ends the stream to the program, which can still send.
func (d *dialConn) CloseWrite() error {
	d.writeMu.Lock()
	defer d.writeMu.Unlock()
	if d.closed.Load() || d.sentEOF {
		return net.ErrClosed
	}
	d.sentEOF = true
	d.conn.putLast(protocol.Header{Type: protocol.EOF, Channel: protocol.Body, Op: d.id}, nil)
	return nil
}

// Close ends reads and writes. The program's connection ends when Serve returns.
func (d *dialConn) Close() error {
	if d.closed.Swap(true) {
		return net.ErrClosed
	}
	d.readBy.kill()
	d.writeBy.kill()
	return nil
}

func (d *dialConn) LocalAddr() net.Addr  { return d.to }
func (d *dialConn) RemoteAddr() net.Addr { return guestAddr{} }

func (d *dialConn) SetDeadline(t time.Time) error {
	d.readBy.set(t)
	d.writeBy.set(t)
	return nil
}

func (d *dialConn) SetReadDeadline(t time.Time) error {
	d.readBy.set(t)
	return nil
}

func (d *dialConn) SetWriteDeadline(t time.Time) error {
	d.writeBy.set(t)
	return nil
}

// dialAddr is where a program connected to. It contains nothing that the guest chose.
type dialAddr protocol.Dial

func (dialAddr) Network() string  { return "guest" }
func (a dialAddr) String() string { return a.Door }

// guestAddr is a program in the guest.
type guestAddr struct{}

func (guestAddr) Network() string { return "guest" }
func (guestAddr) String() string  { return "guest" }

// deadline has a channel that is closed while its time has passed.
type deadline struct {
	mu    sync.Mutex
	ch    chan struct{} // guarded by mu
	shut  bool          // guarded by mu; ch is closed
	dead  bool          // guarded by mu; for good
	timer *time.Timer   // guarded by mu; nil: none
	turn  int           // guarded by mu; counts calls of set, for timers that have fired already
}

func newDeadline() *deadline { return &deadline{ch: make(chan struct{})} }

func (d *deadline) done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ch
}

func (d *deadline) passed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shut
}

// set sets the time; the zero time means never.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		return
	}
	d.turn++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	wait := time.Until(t)
	switch {
	case !t.IsZero() && wait <= 0:
		d.shutLocked()
		return
	case d.shut:
		d.ch, d.shut = make(chan struct{}), false
	}
	if t.IsZero() {
		return
	}
	turn := d.turn
	d.timer = time.AfterFunc(wait, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.turn == turn {
			d.shutLocked()
		}
	})
}

// kill lets the time pass for good.
func (d *deadline) kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead = true
	d.turn++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.shutLocked()
}

func (d *deadline) shutLocked() {
	if !d.shut {
		d.shut = true
		close(d.ch)
	}
}
