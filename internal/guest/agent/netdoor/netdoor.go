// Package netdoor listens on the guest's loopback for the network requests of its
// programs, and passes them to the host: a name server, an HTTP proxy, a SOCKS proxy, and
// for each name that the host allows an address of 127.80.0.0/12 with the ports that may
// be connected to. It interprets names and nothing else; the host parses and decides.
//
// Without a network it answers everything itself, and asks the host nothing.
package netdoor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// Host answers for the doors. Its methods may be called concurrently.
type Host interface {
	// Dial opens a connection on the host.
	Dial(d protocol.Dial) (Stream, error)
	// Lookup asks whether a name may be dialed; protocol.ValidName is true for it.
	Lookup(ctx context.Context, name string) (protocol.LookupResult, error)
}

// Stream is the host's end of a connection. The caller must end it with CloseWrite or
// Cancel. Write and CloseWrite must not be called concurrently.
type Stream interface {
	io.Writer
	// WriteTo writes what the host sends to w until the host's last byte.
	io.WriterTo
	// CloseWrite tells the host that the program sends no more.
	CloseWrite()
	// Cancel tells the host that the program is gone. It may be called more than once.
	Cancel()
	// Context is done when the host has ended the connection, or is gone; its cause is
	// ErrEnded in the first case.
	Context() context.Context
}

// ErrEnded is the cause of a Stream's end in order.
var ErrEnded = errors.New("ended by the host")

// The addresses of the doors in a guest.
const (
	Server = "127.77.0.1"
	DNS    = Server + ":53"
	HTTP   = Server + ":3128"
	SOCKS  = Server + ":1080"
)

// Config says where to listen. Empty addresses are those of a guest.
type Config struct {
	DNS, HTTP, SOCKS string
	Log              *slog.Logger // nil: none
}

const (
	// maxConns bounds the connections of programs, including those that are refused.
	maxConns = protocol.MaxDials
	// settleTime bounds how long programs wait for the settings of a new connection to
	// the host, which sends them at once if the guest may use the network.
	settleTime = 3 * time.Second
	// lookupTime bounds the answer to a query. The host takes 5 s at most.
	lookupTime = 8 * time.Second
	// lingerTime is how long a program that still sends may read the last bytes.
	lingerTime = time.Second
	// maxLinger bounds the bytes that are dropped meanwhile.
	maxLinger = 1 << 20
	// drainTime bounds how long a program may take to read what the host has sent
	// before it ended the connection: at most two windows.
	drainTime = time.Minute
	// acceptDelay is the pause after a failed accept: too many open files, for example.
	acceptDelay = 50 * time.Millisecond
	// bufferSize is that of the buffers for bytes to the host.
	bufferSize = protocol.MaxDialFrame
)

// defaultNotice is the text of refusals before the host has sent another. A refusal of the
// HTTP proxy says what to ask for, too.
const defaultNotice = "Glovebox: this box has no network"

// Doors are the listeners on the loopback of a guest through which its programs reach the network.
// All methods may be called concurrently.
type Doors struct {
	log     *slog.Logger
	names   names
	answers answers
	conns   chan struct{} // an element for each connection
	buffers sync.Pool

	udp       net.PacketConn
	listeners []net.Listener
	quit      context.Context
	cancel    context.CancelFunc

	mu      sync.Mutex
	open    map[net.Conn]bool // guarded by mu
	closed  bool              // guarded by mu
	host    Host              // guarded by mu; nil before Connect
	on      bool              // guarded by mu
	notice  string            // guarded by mu
	settled chan struct{}     // guarded by mu; nil: settings are known; closed when they are

	wg sync.WaitGroup
}

// Open opens the doors. They refuse everything until Configure. The caller must call
// Close.
func Open(cfg Config) (*Doors, error) {
	d := &Doors{
		log: cfg.Log, notice: defaultNotice, conns: make(chan struct{}, maxConns), open: make(map[net.Conn]bool),
		buffers: sync.Pool{New: func() any { b := make([]byte, bufferSize); return &b }},
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.quit, d.cancel = context.WithCancel(context.Background())
	d.names.init()
	udp, err := net.ListenPacket("udp4", or(cfg.DNS, DNS))
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("open name server: %w", err)
	}
	d.udp = udp
	for _, door := range []struct {
		address, name string
	}{
		{udp.LocalAddr().String(), doorDNS},
		{or(cfg.HTTP, HTTP), protocol.DoorHTTP},
		{or(cfg.SOCKS, SOCKS), protocol.DoorSOCKS},
	} {
		l, err := net.Listen("tcp4", door.address)
		if err != nil {
			d.Close()
			return nil, fmt.Errorf("open door: %w", err)
		}
		d.listeners = append(d.listeners, l)
		d.wg.Go(func() { d.accept(l, protocol.Dial{Door: door.name}) })
	}
	d.wg.Go(func() { d.serveUDP(udp) })
	return d, nil
}

func or(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

// Close closes the doors and all connections, and waits for their goroutines.
func (d *Doors) Close() {
	d.cancel()
	d.mu.Lock()
	d.closed = true
	for c := range d.open {
		c.Close()
	}
	d.mu.Unlock()
	if d.udp != nil {
		d.udp.Close()
	}
	for _, l := range d.listeners {
		l.Close()
	}
	d.names.close()
	d.wg.Wait()
}

// Connect makes h the host. The network is off until Configure; programs wait for that a
// short time if it was on.
func (d *Doors) Connect(h Host) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.host = h
	if d.on && d.settled == nil {
		ch := make(chan struct{})
		d.settled = ch
		time.AfterFunc(settleTime, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.settled == ch {
				d.settleLocked()
			}
		})
	}
	d.on = false
	d.answers.clear()
}

// Configure turns the network on or off. notice is the text of refusals while it is off;
// if it is empty, a text of this package.
func (d *Doors) Configure(on bool, notice string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.on, d.notice = on, or(clean(notice, protocol.MaxNotice), defaultNotice)
	d.answers.clear()
	d.settleLocked()
}

// BeginCall makes the host decide again on the names that have no address. The result of a
// call of the box has the host's refusals of that call: an answer that is kept from the call
// before would leave a program's failure without its reason.
func (d *Doors) BeginCall() { d.answers.forgetFailed() }

func (d *Doors) settleLocked() {
	if d.settled != nil {
		close(d.settled)
		d.settled = nil
	}
}

// current returns the host, nil without a network, and the text of refusals.
func (d *Doors) current() (Host, string) {
	d.mu.Lock()
	if settled := d.settled; settled != nil {
		d.mu.Unlock()
		select {
		case <-settled:
		case <-d.quit.Done():
		}
		d.mu.Lock()
	}
	defer d.mu.Unlock()
	if !d.on {
		return nil, d.notice
	}
	return d.host, d.notice
}

// accept serves the connections of a door until l is closed.
func (d *Doors) accept(l net.Listener, x protocol.Dial) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			select {
			case <-time.After(acceptDelay):
				continue
			case <-d.quit.Done():
				return
			}
		}
		select {
		case d.conns <- struct{}{}:
		default:
			d.turnAway(c, x)
			continue
		}
		if !d.track(c) {
			<-d.conns
			c.Close()
			return
		}
		d.wg.Go(func() {
			d.serve(c.(*net.TCPConn), x)
			d.untrack(c)
			<-d.conns
		})
	}
}

// track makes Close close c. It returns false after Close.
func (d *Doors) track(c net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.open[c] = true
	return true
}

func (d *Doors) untrack(c net.Conn) {
	c.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, c)
}

// turnAway refuses a connection beyond the limit without waiting for its program.
func (d *Doors) turnAway(c net.Conn, x protocol.Dial) {
	if x.Door == protocol.DoorHTTP {
		c.SetWriteDeadline(time.Now().Add(acceptDelay))
		text := fmt.Sprintf("Glovebox: this box has %d connections already; close some and try again", maxConns)
		io.WriteString(c, response("429 "+text, text)) // as clients print it that do not print the body
	}
	c.Close()
}

// serve serves one connection of a program.
func (d *Doors) serve(c *net.TCPConn, x protocol.Dial) {
	if x.Door == doorDNS {
		d.serveQueries(c)
		return
	}
	host, notice := d.current()
	if host == nil {
		switch x.Door {
		case protocol.DoorHTTP:
			refuseHTTP(c, notice)
		case protocol.DoorSOCKS:
			refuseSOCKS(c)
		}
		return
	}
	s, err := host.Dial(x)
	if err != nil {
		d.log.Debug("dial failed", "door", x.Door, "err", err)
		if x.Door == protocol.DoorHTTP {
			io.WriteString(c, response("503 Service Unavailable", "Glovebox: the connection to the network was interrupted; try again"))
			linger(c)
		}
		return
	}
	d.pass(c, s)
}

// pass passes bytes in both directions until both have ended or one end is gone.
func (d *Doors) pass(c *net.TCPConn, s Stream) {
	stop := context.AfterFunc(s.Context(), func() {
		if context.Cause(s.Context()) != ErrEnded { // what the program got is not all
			c.SetLinger(0)
			c.Close()
			return
		}
		c.SetReadDeadline(time.Unix(1, 0))
		c.SetWriteDeadline(time.Now().Add(drainTime))
	})
	defer stop()
	var sent sync.WaitGroup
	sent.Go(func() { d.send(c, s) })
	if _, err := s.WriteTo(c); err != nil {
		s.Cancel() // the program is gone, or the host
		c.Close()
	} else {
		c.CloseWrite()
		<-s.Context().Done()
	}
	sent.Wait()
	linger(c)
}

// send passes the program's bytes to the host.
func (d *Doors) send(c *net.TCPConn, s Stream) {
	buf := d.buffers.Get().(*[]byte)
	defer d.buffers.Put(buf)
	for {
		n, err := c.Read(*buf)
		if n > 0 {
			if _, err := s.Write((*buf)[:n]); err != nil {
				break
			}
		}
		if err == io.EOF {
			s.CloseWrite()
			return
		}
		if err != nil {
			break
		}
	}
	s.Cancel()
}

// linger reads and drops what the program still sends: closing at once would reset the
// connection, and the program might lose what it has not read.
func linger(c *net.TCPConn) {
	c.CloseWrite()
	c.SetReadDeadline(time.Now().Add(lingerTime))
	io.CopyN(io.Discard, c, maxLinger)
}
