package mcpserver

import (
	"bytes"
	"io"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

func (s *Server) servePOST(w http.ResponseWriter, r *http.Request) {
	if mediaType(r.Header.Get("Content-Type")) != "application/json" {
		s.refuse(w, http.StatusUnsupportedMediaType, nil, jsonrpc.CodeInvalidRequest, "Invalid request: Content-Type must be application/json")
		return
	}
	body, ok := s.readBody(w, r)
	if !ok {
		return
	}
	m, ok := s.peek(w, r, body)
	if !ok {
		return
	}
	if m.Method != listen {
		s.posts.add(1) // before the look, so that Shutdown misses none
		defer s.posts.add(-1)
	}
	if s.draining.Load() {
		s.refuseDraining(w, m.ID)
		return
	}
	next, json, ok := s.route(w, r, m)
	if !ok {
		return
	}
	beat := s.opts.Limits.Heartbeat
	if json {
		beat = 0
	}
	res := newResponse(w, m.ID, beat)
	defer res.finish()
	if call, ok := s.direct(r, &m); ok {
		s.serveDirect(res, r, &m, call)
		return
	}
	// A copy: the SDK assigns the body while net/http may look at it.
	to := r.WithContext(r.Context())
	to.Body = io.NopCloser(bytes.NewReader(body))
	to.ContentLength = int64(len(body))
	if json {
		to.Header = r.Header.Clone()
		to.Header.Set("Accept", "application/json, "+eventStream)
	}
	next.ServeHTTP(res, to)
}
