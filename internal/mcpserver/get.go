package mcpserver

import (
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/mcpserver/envelope"
)

func (s *Server) serveGET(w http.ResponseWriter, r *http.Request) {
	accept := parseAccept(r.Header.Values("Accept"))
	switch {
	case accept.stream && r.Method == http.MethodGet:
	case accept.none || accept.any || accept.json || accept.html:
		s.serveStatus(w, r)
		return
	default:
		s.refuse(w, http.StatusNotAcceptable, nil, jsonrpc.CodeInvalidRequest, "Not Acceptable: use text/event-stream for the stream or application/json for the status")
		return
	}
	if s.draining.Load() {
		s.refuseDraining(w, nil)
		return
	}
	next := s.stateful
	if r.Header.Get(headerVersion) >= envelope.Modern {
		next = s.stateless
	}
	res := newResponse(w, nil, s.opts.Limits.Heartbeat)
	defer res.finish()
	next.ServeHTTP(res, r.WithContext(r.Context()))
}
