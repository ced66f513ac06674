// Package peek reads the beginning of a connection without consuming it: whether the
// program speaks TLS or HTTP, and the server name that it asks for in TLS.
package peek

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// A Protocol is spoken by a client.
type Protocol int

const (
	Other Protocol = iota
	TLS
	HTTP // HTTP/1.x
)

// Seen describes the beginning of a connection.
type Seen struct {
	Protocol Protocol
	// ServerName is the name in the ClientHello of TLS as the client wrote it; empty if
	// it has none.
	ServerName string
}

// Max bounds the bytes that are read, which includes a ClientHello in many records.
const Max = 16 << 10

// Peek reads at most [Max] bytes of c, until the end of the ClientHello or of the method.
// It returns a connection that delivers these bytes again. A ClientHello that crypto/tls
// rejects, such as one with two server names, is an error. The caller sets a deadline;
// after an error c is useless.
func Peek(c net.Conn) (Seen, *Conn, error) {
	r := bufio.NewReaderSize(c, Max)
	replay := &Conn{Conn: c, r: r}
	first, err := r.Peek(1)
	if err != nil {
		return Seen{}, replay, err
	}
	if first[0] == recordHandshake {
		name, err := serverName(r)
		return Seen{Protocol: TLS, ServerName: name}, replay, err
	}
	isHTTP, err := hasMethod(r)
	if err != nil {
		return Seen{}, replay, err
	}
	if isHTTP {
		return Seen{Protocol: HTTP}, replay, nil
	}
	return Seen{}, replay, nil
}

const recordHandshake = 0x16

// errSeen ends a handshake after the ClientHello.
var errSeen = errors.New("seen")

// serverName parses the ClientHello at the beginning of r with crypto/tls, which also
// joins one that is split into several records.
func serverName(r *bufio.Reader) (name string, err error) {
	hello := &helloConn{r: r}
	err = tls.Server(hello, &tls.Config{GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
		name = info.ServerName
		return nil, errSeen
	}}).HandshakeContext(context.Background())
	switch {
	case errors.Is(err, errSeen):
		return name, nil
	case hello.err != nil:
		return "", hello.err
	case err == nil:
		err = errors.New("no ClientHello")
	}
	return "", fmt.Errorf("read the ClientHello: %w", err)
}

// maxMethod is the length of the longest registered method, UPDATEREDIRECTREF, and a
// space.
const maxMethod = 18

// hasMethod reports whether r begins with an upper-case word and a space. "PRI ", with
// which HTTP/2 begins, is no method.
func hasMethod(r *bufio.Reader) (bool, error) {
	for n := 1; n <= maxMethod; n++ {
		head, err := r.Peek(n)
		if err != nil {
			return false, err
		}
		switch c := head[n-1]; {
		case c == ' ':
			return n > 1 && !bytes.Equal(head, []byte("PRI ")), nil
		case (c < 'A' || c > 'Z') && c != '-':
			return false, nil
		}
	}
	return false, nil
}

// helloConn lets crypto/tls read ahead of what r has delivered, and discards what it
// writes.
type helloConn struct {
	r   *bufio.Reader
	n   int // bytes read
	err error
}

func (c *helloConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if c.n >= Max {
		c.err = fmt.Errorf("the ClientHello is longer than %d bytes", Max)
		return 0, c.err
	}
	if c.n >= c.r.Buffered() {
		if _, c.err = c.r.Peek(c.n + 1); c.err != nil {
			return 0, c.err
		}
	}
	ahead, err := c.r.Peek(c.r.Buffered())
	if err != nil {
		return 0, err
	}
	n := copy(p, ahead[c.n:])
	c.n += n
	return n, nil
}

func (c *helloConn) Write(p []byte) (int, error)      { return len(p), nil }
func (c *helloConn) Close() error                     { return nil }
func (c *helloConn) LocalAddr() net.Addr              { return nil }
func (c *helloConn) RemoteAddr() net.Addr             { return nil }
func (c *helloConn) SetDeadline(time.Time) error      { return nil }
func (c *helloConn) SetReadDeadline(time.Time) error  { return nil }
func (c *helloConn) SetWriteDeadline(time.Time) error { return nil }

// A Conn delivers bytes that were read ahead, and then those of its connection.
type Conn struct {
	net.Conn
	r io.Reader
}

// Replay returns a connection that delivers first, and then the bytes of c.
func Replay(c net.Conn, first []byte) *Conn {
	return &Conn{Conn: c, r: io.MultiReader(bytes.NewReader(first), c)}
}

func (c *Conn) Read(p []byte) (int, error) { return c.r.Read(p) }

// CloseWrite ends the stream to the peer if the connection can do so; otherwise it closes
// the connection.
func (c *Conn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Close()
}
