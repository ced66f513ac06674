package secret

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/egress/redact"
	"github.com/glovebox-dev/glovebox/internal/egress/webserve"
)

// response masks all that a host returns: headers, body, trailers, and the frames after an
// upgrade. It hides the other methods of the
// ResponseWriter, which would write past it.
type response struct {
	w    http.ResponseWriter
	ctl  *http.ResponseController
	out  *webserve.Writer // to w
	mask *redact.Set
	body *redact.Writer
	conn *maskedConn // after Hijack
	head int64       // headers with a value
	s    *session

	unframed bool    // the host ends the response by ending the connection
	size     int64   // of the body so far
	upload   *upload // nil: the request has no body
}

func newResponse(w http.ResponseWriter, bounds webserve.Bounds, mask *redact.Set, s *session) *response {
	r := &response{s: s, w: w, ctl: http.NewResponseController(w), out: bounds.Writer(w), mask: mask}
	// A host may answer before it has read the request. HTTP/2 always permits that.
	_ = r.ctl.EnableFullDuplex()
	r.body = mask.NewWriter(r.out, &s.load.turn)
	return r
}

// finish writes the rest of a response that the host has completed. It panics with
// http.ErrAbortHandler if the response must not count as complete.
func (r *response) finish() {
	if r.conn != nil {
		return
	}
	if r.s.ctx.Err() != nil {
		panic(http.ErrAbortHandler)
	}
	waited := r.size > surelySent || r.upload != nil && !r.upload.ended.Load() // for the program, perhaps
	if r.unframed && waited && r.body.Holds() {
		r.s.note(egress.Cut, fmt.Sprintf("Glovebox kept the last bytes of an answer of %s, and ended it as an incomplete one: it has no length, and might have been cut off within a secret.", r.s.authority()))
		panic(http.ErrAbortHandler)
	}
	_ = r.body.Close() // the program has left
	r.maskHeader()     // trailers
}

// end stops writing, also after a panic, and returns how many values were masked. If the host has not
// completed the response, the bytes that wait for more do not reach the program: it could have made
// the response end in the middle of a value.
func (r *response) end() int64 {
	r.body.Abort()
	n := r.head + r.body.Matches()
	if r.conn != nil {
		n += r.conn.end()
	}
	return n
}

func (r *response) Header() http.Header { return r.w.Header() }

// WriteHeader implements http.ResponseWriter. It drops informational responses, which no program
// needs: net/http may still read their headers when it returns, and ReverseProxy clears them. Over HTTP/2,
// 101 is one of them. Over HTTP/1.1, the head of an upgrade is written after Hijack.
func (r *response) WriteHeader(status int) {
	if status < http.StatusOK {
		return
	}
	r.maskHeader()
	r.w.WriteHeader(status)
}

// maskHeader masks the headers, or trailers, that are about to be written.
func (r *response) maskHeader() {
	r.s.load.turn.Lock()
	defer r.s.load.turn.Unlock()
	r.head += maskHeader(r.mask, r.w.Header())
}

// surelySent is the size up to which a host can send a body although the program does not read it. Of
// a larger one, the program can make the host wait, and perhaps give up.
const surelySent = 64 << 10

func (r *response) Write(p []byte) (int, error) {
	if err := r.s.ctx.Err(); err != nil {
		return 0, err // the secrets have changed, and with them what has to be masked
	}
	r.size += int64(len(p))
	return r.body.Write(p)
}

// FlushError is for http.ResponseController.
func (r *response) FlushError() error { return r.body.Do(r.out.Flush) }

// Hijack implements http.Hijacker. The buffered writer masks the head of the response, and the
// connection masks frames of WebSocket.
func (r *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := r.ctl.Hijack()
	if err != nil {
		return nil, nil, err
	}
	r.conn = &maskedConn{
		Conn: c, r: rw.Reader, s: r.s,
		head: r.mask.NewWriter(c, &r.s.load.turn), frames: newFrames(c, r.mask, &r.s.load.turn),
	}
	return r.conn, bufio.NewReadWriter(rw.Reader, bufio.NewWriter(r.conn.head)), nil
}

// maskedConn is a connection to a program after an upgrade.
type maskedConn struct {
	net.Conn
	r      io.Reader // with what was read together with the request
	head   *redact.Writer
	frames *frames
	s      *session
}

func (c *maskedConn) Read(p []byte) (int, error) { return c.r.Read(p) }

func (c *maskedConn) Write(p []byte) (int, error) {
	if err := c.s.ctx.Err(); err != nil {
		return 0, err
	}
	return c.frames.Write(p)
}

// CloseWrite ends the stream to the program. It is called when the host has ended its stream.
func (c *maskedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// end stops writing, and returns how many values were masked.
func (c *maskedConn) end() int64 {
	c.head.Abort()
	return c.head.Matches() + c.frames.end()
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
