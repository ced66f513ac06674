package secret

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"

	"github.com/glovebox-dev/glovebox/internal/egress/redact"
	"github.com/glovebox-dev/glovebox/internal/egress/webserve"
)

// response masks all that a host returns: headers, informational responses, body,
// trailers, and the stream after an upgrade. It hides the other methods of the
// ResponseWriter, which would write past it.
type response struct {
	w    http.ResponseWriter
	ctl  *http.ResponseController
	out  *webserve.Writer // to w
	mask *redact.Set
	body *redact.Writer
	conn *maskedConn // after Hijack
	head int64       // headers with a value
}

func newResponse(w http.ResponseWriter, bounds webserve.Bounds, mask *redact.Set) *response {
	r := &response{w: w, ctl: http.NewResponseController(w), out: bounds.Writer(w), mask: mask}
	// A host may answer before it has read the request. HTTP/2 always permits that.
	_ = r.ctl.EnableFullDuplex()
	r.body = mask.NewWriter(r.out, r.out.Flush)
	return r
}

// finish writes the rest of a response that is complete.
func (r *response) finish() {
	if r.conn != nil {
		return
	}
	_ = r.body.Close()                         // the program has left
	r.head += maskHeader(r.mask, r.w.Header()) // trailers
}

// end stops writing, also after a panic, and returns how many values were masked.
func (r *response) end() int64 {
	r.body.Abort()
	n := r.head + r.body.Matches()
	if r.conn != nil {
		r.conn.mask.Abort()
		n += r.conn.mask.Matches()
	}
	return n
}

func (r *response) Header() http.Header { return r.w.Header() }

func (r *response) WriteHeader(status int) {
	r.head += maskHeader(r.mask, r.w.Header())
	r.w.WriteHeader(status)
}

func (r *response) Write(p []byte) (int, error) { return r.body.Write(p) }

// FlushError is for http.ResponseController.
func (r *response) FlushError() error { return r.body.Do(r.out.Flush) }

// Hijack implements http.Hijacker. The connection masks all that is written to it.
func (r *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := r.ctl.Hijack()
	if err != nil {
		return nil, nil, err
	}
	r.head += maskHeader(r.mask, r.w.Header())
	r.conn = &maskedConn{Conn: c, r: rw.Reader, mask: r.mask.NewWriter(c, nil)}
	return r.conn, bufio.NewReadWriter(rw.Reader, bufio.NewWriter(r.conn)), nil
}

// maskedConn is a connection to a program after an upgrade.
type maskedConn struct {
	net.Conn
	r    io.Reader // with what was read together with the request
	mask *redact.Writer
}

func (c *maskedConn) Read(p []byte) (int, error)  { return c.r.Read(p) }
func (c *maskedConn) Write(p []byte) (int, error) { return c.mask.Write(p) }

// CloseWrite writes what is held back and ends the stream to the program.
func (c *maskedConn) CloseWrite() error {
	err := c.mask.Close()
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return errors.Join(err, half.CloseWrite())
	}
	return err
}

// maskHeader masks the values of headers, removes headers with a value in their name, and
// returns how many headers it changed.
func maskHeader(mask *redact.Set, h http.Header) (n int64) {
	for name, values := range h {
		if mask.InName(name) {
			delete(h, name)
			n++
			continue
		}
		for i, v := range values {
			if masked := mask.String(v); masked != v {
				values[i] = masked
				n++
			}
		}
	}
	return n
}
