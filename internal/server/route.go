package server

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/internal/server/envelope"
)

const (
	headerSession   = "Mcp-Session-Id"
	headerVersion   = "Mcp-Protocol-Version"
	headerLastEvent = "Last-Event-Id"
)

// openHTTP makes the SDK's handlers. One accepts only revisions with
// sessions, another only those without; both serve the one server.
func (s *Server) openHTTP() {
	get := func(*http.Request) *mcp.Server { return s.mcp }
	s.replay = newReplay(s.opts.Limits.Replay)
	s.replay.skip = s.storesUnwanted
	log := slog.New(quiet{s.log.Handler()})
	s.stateful = mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		EventStore: s.replay, Logger: log,
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

func modernHeader(r *http.Request) bool { return revision.IsModern(r.Header.Get(headerVersion)) }

// route chooses the handler; json says that it answers in one JSON body. What no
// handler would serve it refuses. Leave ends what it holds for the request.
//
// A request of an older revision without a session is answered without one,
// unless it begins one: clients of the first generation know no handshake.
func (s *Server) route(w http.ResponseWriter, r *http.Request, m *postBody) (next http.Handler, json bool, leave func(), ok bool) {
	leave = func() {}
	version := r.Header.Get(headerVersion)
	modern := revision.IsModern(version) || m.IsModern()
	named := r.Header.Get(headerSession) != ""
	accept := parseAccept(r.Header.Values("Accept"))
	if accept.none || accept.any {
		accept.json, accept.stream = true, true
		json = true
	}
	switch bare := !modern && !named && m.Method != initialize; {
	case bare && accept.json && !accept.stream:
		json = true
	case !accept.json || !accept.stream:
		s.refuse(w, http.StatusNotAcceptable, m.ID, jsonrpc.CodeInvalidRequest, "Not Acceptable: Accept must contain both application/json and text/event-stream")
		return nil, false, nil, false
	case !bare:
		json = false
	}
	switch {
	case modern:
		next = s.stateless
	case named:
		of, release, ok := s.holdSession(w, r, m.ID)
		if !ok {
			return nil, false, nil, false
		}
		next, leave, m.session = s.stateful, release, of
		version = cmp.Or(version, of.version)
	case m.Method == initialize:
		release, ok := s.sessions.reserve(subject(r))
		if !ok {
			s.refuseBusy(w, m.ID, "Too many sessions")
			return nil, false, nil, false
		}
		next, leave = s.stateful, release
	case json:
		next = s.statelessJSON
	default:
		next = s.stateless
	}
	if m.batch && version >= revision.NoBatch {
		leave()
		s.refuse(w, http.StatusBadRequest, nil, jsonrpc.CodeInvalidRequest, fmt.Sprintf("Invalid request: batches are not part of protocol revision %.20s", version))
		return nil, false, nil, false
	}
	if modern || m.Method == "" || known[m.Method] {
		return next, json, leave, true
	}
	leave()
	switch {
	case m.batch:
		s.refuse(w, http.StatusBadRequest, nil, jsonrpc.CodeMethodNotFound, "Method not found: "+m.Method)
	case m.Kind == envelope.Notification:
		w.WriteHeader(http.StatusAccepted)
	default:
		s.refuse(w, http.StatusOK, m.ID, jsonrpc.CodeMethodNotFound, "Method not found: "+m.Method)
	}
	return nil, false, nil, false
}
