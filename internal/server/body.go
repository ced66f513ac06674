package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

const (
	// firstBody bounds the buffer allocated before any byte of a body has arrived.
	firstBody = 64 << 10
	// refusedBody and refusedLimit bound what is read and discarded of a refused body:
	// most clients read no answer while they send, and would see a reset connection in
	// place of the reason.
	refusedBody  = 512 << 20
	refusedLimit = 10 * time.Second
	// excessReadTimeout is refusedLimit for a request that exceeds the limit of requests in flight.
	excessReadTimeout = time.Second
	// smallBody is the size up to which a body does not count against the limit of all
	// bodies, which is largeBodies times that of one. The limit of requests in flight bounds
	// the number of these.
	smallBody   = 8 << 10
	largeBodies = 8
)

// readBody reads a body within the limits, or refuses the request. The body counts against
// the limits of all bodies and of its owner's until release is called.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), ok bool) {
	limit, p := s.opts.Limits.Body, callerIn(r).account()
	rc := http.NewResponseController(w)
	clearWriteDeadline(rc)
	refuse := func(respond func()) {
		if r.Header.Get("Expect") == "" { // else the client waits to hear whether to send it
			_ = rc.SetReadDeadline(time.Now().Add(refusedLimit))
			_, _ = io.CopyN(io.Discard, r.Body, refusedBody)
		}
		w.Header().Set("Connection", "close") // there may be more of the body
		respond()
	}
	tooLarge := func() {
		s.auditRefusal(r, requestLimit)
		s.refuse(w, http.StatusRequestEntityTooLarge, nil, jsonrpc.CodeInvalidRequest,
			fmt.Sprintf("Request too large: the body exceeds %d bytes", limit))
	}
	if r.ContentLength > limit {
		refuse(tooLarge)
		return nil, nil, false
	}
	reserved := int64(0)
	free := func() { s.bodies.give(p, reserved) }
	defer func() {
		if !ok {
			free()
		}
	}()
	// reserve takes memory for a body of the given size.
	reserve := func(size int64) bool {
		if size <= smallBody || size <= reserved {
			return true
		}
		e := s.bodies.take(p, size-reserved)
		if e != withinLimits {
			refuse(func() { s.refuseExcess(w, r, nil, e, "Too many large requests") })
			return false
		}
		reserved = size
		return true
	}
	if !reserve(r.ContentLength) {
		return nil, nil, false
	}
	_ = rc.SetReadDeadline(time.Now().Add(s.opts.Limits.Upload)) // not every writer has one
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		buf.Grow(int(min(r.ContentLength, firstBody)) + bytes.MinRead)
	}
	// The buffer doubles when it is full. The memory for a body of unknown length is charged
	// before that.
	part := int64(smallBody)
	if r.ContentLength >= 0 {
		part = limit + 1
	}
	for ; ; part = int64(buf.Len()) {
		n, err := buf.ReadFrom(io.LimitReader(r.Body, min(part, limit+1-int64(buf.Len()))))
		switch {
		case err != nil:
			if errors.Is(err, os.ErrDeadlineExceeded) {
				s.auditRefusal(r, requestLimit)
			}
			s.refuse(w, http.StatusBadRequest, nil, jsonrpc.CodeInvalidRequest, "Invalid request: the body ended early")
			return nil, nil, false
		case int64(buf.Len()) > limit:
			refuse(tooLarge)
			return nil, nil, false
		case n < part:
			_ = rc.SetReadDeadline(time.Time{})
			return buf.Bytes(), free, true
		case !reserve(min(2*int64(buf.Len()), limit)):
			return nil, nil, false
		}
	}
}
