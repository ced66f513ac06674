package mcpserver

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

const (
	// bodyLimit ends clients that trickle a request's body.
	bodyLimit = 2 * time.Minute
	// firstBody is what is set aside for a body before its bytes are here.
	firstBody = 64 << 10
	// refusedBody and refusedLimit bound what is read, and thrown away, of a body
	// that is too large: most clients do not look for an answer while they send,
	// and would meet a reset connection in place of the reason.
	refusedBody  = 512 << 20
	refusedLimit = 10 * time.Second
)

func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	limit := s.opts.Limits.Body
	rc := http.NewResponseController(w)
	tooLarge := func() ([]byte, bool) {
		_ = rc.SetReadDeadline(time.Now().Add(refusedLimit))
		_, _ = io.CopyN(io.Discard, r.Body, refusedBody)
		w.Header().Set("Connection", "close") // there may be more of the body
		s.refuse(w, http.StatusRequestEntityTooLarge, nil, jsonrpc.CodeInvalidRequest,
			fmt.Sprintf("Request too large: the body exceeds %d bytes", limit))
		return nil, false
	}
	if r.ContentLength > limit {
		return tooLarge()
	}
	_ = rc.SetReadDeadline(time.Now().Add(bodyLimit)) // not every writer has one
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		buf.Grow(int(min(r.ContentLength, firstBody)) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(r.Body, limit+1))
	if n > limit {
		return tooLarge()
	}
	_ = rc.SetReadDeadline(time.Time{})
	if err != nil {
		s.refuse(w, http.StatusBadRequest, nil, jsonrpc.CodeInvalidRequest, "Invalid request: the body ended early")
		return nil, false
	}
	return buf.Bytes(), true
}
