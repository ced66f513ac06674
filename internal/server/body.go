package server

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
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
	// largeBody is the size from which a body counts as large. All large bodies together
	// may take largeBodies times the limit of one.
	largeBody   = 1 << 20
	largeBodies = 8
)

// readBody reads a body within the limits, or refuses the request. The body counts
// against the limit of all large bodies until release is called.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), ok bool) {
	limit := s.opts.Limits.Body
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
		s.refuse(w, http.StatusRequestEntityTooLarge, nil, jsonrpc.CodeInvalidRequest,
			fmt.Sprintf("Request too large: the body exceeds %d bytes", limit))
	}
	if r.ContentLength > limit {
		refuse(tooLarge)
		return nil, nil, false
	}
	size := r.ContentLength
	if size < 0 {
		size = limit
	}
	if size < largeBody {
		size = 0
	}
	if s.bodies.Add(size) > largeBodies*limit && size > 0 {
		s.bodies.Add(-size)
		refuse(func() { s.refuseBusy(w, nil, "Too many large requests at once") })
		return nil, nil, false
	}
	_ = rc.SetReadDeadline(time.Now().Add(s.opts.Limits.Upload)) // not every writer has one
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		buf.Grow(int(min(r.ContentLength, firstBody)) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(r.Body, limit+1))
	switch {
	case n > limit:
		refuse(tooLarge)
	case err != nil:
		s.refuse(w, http.StatusBadRequest, nil, jsonrpc.CodeInvalidRequest, "Invalid request: the body ended early")
	default:
		_ = rc.SetReadDeadline(time.Time{})
		return buf.Bytes(), func() { s.bodies.Add(-size) }, true
	}
	s.bodies.Add(-size)
	return nil, nil, false
}
