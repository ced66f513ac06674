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
func (k *dialConn) stopped(by *deadline) error {
	switch {
	case k.closed.Load():
		return net.ErrClosed
	case k.ctx.Err() != nil:
		return context.Cause(k.ctx)
	case by.passed():
		return os.ErrDeadlineExceeded
	}
	return nil
}

func (k *dialConn) Read(p []byte) (int, error) {
	k.readMu.Lock()
	defer k.readMu.Unlock()
	for {
		if err := k.stopped(k.readBy); err != nil {
			return 0, err
		}
		if k.at < len(k.data) || len(p) == 0 {
			n := copy(p, k.data[k.at:])
			k.at += n
			return n, nil
		}
		if k.eof {
			return 0, io.EOF
		}
		if k.take(); k.at < len(k.data) || k.eof {
			continue
		}
		select {
		case <-k.in.Wake:
		case <-k.readBy.done():
		}
	}
}

// take replaces the batch being read by the next one, which counts as consumed: the
// window bounds both.
func (k *dialConn) take() {
	k.data, k.items = k.in.Take(k.data, k.items)
	k.at = 0
	var credit uint32
	for _, it := range k.items {
		k.eof = k.eof || it.EOF
		credit += k.in.Consume(it)
	}
	if credit > 0 && !k.eof {
		k.conn.putFrame(protocol.Header{Type: protocol.Credit, Op: k.id}, binary.BigEndian.AppendUint32(nil, credit))
	}
}

func (k *dialConn) Write(p []byte) (done int, err error) {
	k.writeMu.Lock()
	defer k.writeMu.Unlock()
	for {
		if err := k.stopped(k.writeBy); err != nil {
			return done, err
		}
		if k.sentEOF {
			return done, net.ErrClosed
		}
		if len(p) == 0 {
			return done, nil
		}
		n, err := k.window.Take(min(len(p), protocol.MaxDialFrame), k.writeBy.done())
		if err == nil {
			err = k.conn.link.TakeAll(n, k.writeBy.done())
		}
		if err == nil { // the window of the link bounds what is pending
			err = k.conn.out.PutBulk(0, protocol.Header{Type: protocol.Data, Channel: protocol.Body, Op: k.id}, p[:n])
		}
		if errors.Is(err, protocol.ErrStopped) {
			continue // stopped returns the reason
		}
		if err != nil {
			return done, err
		}
		k.conn.out.Wake()
		p, done = p[n:], done+n
	}
}

// CloseWrite ends the stream to the program, which can still send.
func (k *dialConn) CloseWrite() error {
	k.writeMu.Lock()
	defer k.writeMu.Unlock()
	if k.closed.Load() || k.sentEOF {
		return net.ErrClosed
	}
	k.sentEOF = true
	k.conn.putLast(protocol.Header{Type: protocol.EOF, Channel: protocol.Body, Op: k.id}, nil)
	return nil
}

// Close ends reads and writes. The program's connection ends when Serve returns.
func (k *dialConn) Close() error {
	if k.closed.Swap(true) {
		return net.ErrClosed
	}
	k.readBy.kill()
	k.writeBy.kill()
	return nil
}

func (k *dialConn) LocalAddr() net.Addr  { return k.to }
func (k *dialConn) RemoteAddr() net.Addr { return guestAddr{} }

func (k *dialConn) SetDeadline(t time.Time) error {
	k.readBy.set(t)
	k.writeBy.set(t)
	return nil
}

func (k *dialConn) SetReadDeadline(t time.Time) error {
	k.readBy.set(t)
	return nil
}

func (k *dialConn) SetWriteDeadline(t time.Time) error {
	k.writeBy.set(t)
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
