package mcpserver

import (
	"log/slog"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/mcpserver/envelope"
)

const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"
)

// openHTTP makes the SDK's handlers. One accepts only revisions with
// sessions, another only those without; both serve the one server.
func (s *Server) openHTTP() {
	get := func(*http.Request) *mcp.Server { return s.mcp }
	l := s.opts.Limits
	log := slog.New(quiet{s.log.Handler()})
	s.stateful = mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		EventStore: newReplay(l.Replay), SessionTimeout: l.SessionIdle, Logger: log,
		MaxRequestBodyBytes: -1, DisableLocalhostProtection: true, // the front has done both
	})
	s.stateless = mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		Stateless: true, PropagateRequestCancellation: true, Logger: log,
		MaxRequestBodyBytes: -1, DisableLocalhostProtection: true,
	})
	s.statelessJSON = mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		Stateless: true, JSONResponse: true, Logger: log,
		MaxRequestBodyBytes: -1, DisableLocalhostProtection: true,
	})
}

// route chooses the handler; json says that it answers in one JSON body.
//
// A request of an older revision without a session is answered without one,
// unless it begins one: clients of the first generation know no handshake.
func (s *Server) route(w http.ResponseWriter, r *http.Request, m envelope.Envelope) (next http.Handler, json, ok bool) {
	accept := parseAccept(r.Header.Values("Accept"))
	modern := r.Header.Get(headerVersion) >= envelope.Modern || m.IsModern()
	bare := !modern && r.Header.Get(headerSession) == "" && m.Method != "initialize"
	switch {
	case accept.none || accept.any:
		accept.json, accept.stream = true, true
		if bare {
			return s.statelessJSON, true, true
		}
	case bare && accept.json && !accept.stream:
		return s.statelessJSON, true, true
	}
	if !accept.json || !accept.stream {
		s.refuse(w, http.StatusNotAcceptable, m.ID, jsonrpc.CodeInvalidRequest, "Not Acceptable: Accept must contain both application/json and text/event-stream")
		return nil, false, false
	}
	if modern || bare {
		return s.stateless, false, true
	}
	return s.stateful, false, true
}
