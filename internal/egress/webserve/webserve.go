// Package webserve serves HTTP on one connection of a program in a box. The program is
// hostile: nothing that it omits to send or to read keeps the connection for ever.
package webserve

import (
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// headerTimeout bounds the handshake and the header of a request, so that a program
	// that sends them byte by byte does not keep the connection.
	headerTimeout = 10 * time.Second
	// keepAlive is how long a connection without a request stays open.
	keepAlive = 60 * time.Second
	// MaxHeader bounds the header of a request, in bytes.
	MaxHeader = 64 << 10
)

// Serve serves the requests on c with srv, over TLS if srv has a TLSConfig, until the
// connection has ended or was hijacked. It sets the bounds of srv, and discards its errors,
// which are those of the program. After a hijack the handler may still run when Serve
// returns. The caller closes c.
func Serve(srv *http.Server, c net.Conn) {
	l := &listener{conn: c, ended: make(chan struct{})}
	srv.ReadHeaderTimeout, srv.IdleTimeout, srv.MaxHeaderBytes = headerTimeout, keepAlive, MaxHeader
	srv.ErrorLog = log.New(io.Discard, "", 0)
	srv.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed || s == http.StateHijacked {
			l.end()
		}
	}
	// The error is that of Accept, after the connection has ended.
	if srv.TLSConfig != nil {
		_ = srv.ServeTLS(l, "", "")
	} else {
		_ = srv.Serve(l)
	}
}

// A listener accepts one connection, and fails when that has ended.
type listener struct {
	conn  net.Conn
	taken bool
	ended chan struct{}
	once  sync.Once
}

func (l *listener) end() { l.once.Do(func() { close(l.ended) }) }

func (l *listener) Accept() (net.Conn, error) {
	if !l.taken {
		l.taken = true
		return l.conn, nil
	}
	<-l.ended
	return nil, io.EOF
}

func (l *listener) Close() error   { return nil }
func (l *listener) Addr() net.Addr { return l.conn.LocalAddr() }
