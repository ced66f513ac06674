package server

import (
	"cmp"
	"fmt"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/internal/server/envelope"
	"github.com/glovebox-dev/glovebox/internal/server/tasks"
)

const (
	headerSession   = "Mcp-Session-Id"
	headerVersion   = "Mcp-Protocol-Version"
	headerLastEvent = "Last-Event-Id"
)

func modernHeader(r *http.Request) bool { return revision.IsModern(r.Header.Get(headerVersion)) }

// A target describes how a body is served and answered.
type target struct {
	modern  bool   // by a revision without sessions
	json    bool   // in one JSON body
	version string // the revision, "" if nothing names it
}

// route chooses how a body is served, and refuses unsupported methods. The caller calls
// unreserve when the calls keep the session from expiring, or the POST ends.
//
// A request of an older revision without a session is answered without one,
// unless it begins one: clients of the first generation know no handshake.
func (s *Server) route(w http.ResponseWriter, r *http.Request, m *postBody) (to target, unreserve func(), ok bool) {
	unreserve = func() {}
	to.version = r.Header.Get(headerVersion)
	to.modern = revision.IsModern(to.version) || m.IsModern()
	named := r.Header.Get(headerSession) != ""
	accept := parseAccept(r.Header.Values("Accept"))
	if accept.none || accept.any {
		accept.json, accept.stream = true, true
		to.json = true
	}
	switch bare := !to.modern && !named && m.Method != initialize; {
	case bare && accept.json && !accept.stream:
		to.json = true
	case !accept.json || !accept.stream:
		s.refuse(w, http.StatusNotAcceptable, m.ID, jsonrpc.CodeInvalidRequest, "Not Acceptable: Accept must contain both application/json and text/event-stream")
		return to, nil, false
	case !bare:
		to.json = false
	}
	switch {
	case to.modern:
	case named:
		if m.session, unreserve, ok = s.holdSession(w, r, m.ID); !ok {
			return to, nil, false
		}
		to.version = cmp.Or(to.version, m.session.version)
	case m.Method == initialize:
		var e excess
		if unreserve, e = s.sessions.reserve(callerIn(r).account()); e != withinLimits {
			s.refuseExcess(w, r, m.ID, e, "Too many MCP sessions")
			return to, nil, false
		}
	}
	if m.batch && to.version >= revision.NoBatch {
		unreserve()
		s.refuse(w, http.StatusBadRequest, nil, jsonrpc.CodeInvalidRequest, fmt.Sprintf("Invalid request: batches are not part of protocol revision %.20s", to.version))
		return to, nil, false
	}
	if m.Method == "" || known[m.Method] && (m.Method != methodListen || to.modern) || to.modern && tasks.Serves(m.Method) {
		return to, unreserve, true
	}
	unreserve()
	switch text := "Method not found: " + m.Method; {
	case m.batch:
		s.refuse(w, http.StatusBadRequest, nil, jsonrpc.CodeMethodNotFound, text)
	case m.Kind == envelope.Notification && to.modern:
		s.refuse(w, http.StatusBadRequest, nil, jsonrpc.CodeMethodNotFound, text)
	case m.Kind == envelope.Notification:
		w.WriteHeader(http.StatusAccepted)
	case to.modern:
		s.refuse(w, http.StatusNotFound, m.ID, jsonrpc.CodeMethodNotFound, text)
	default:
		s.refuse(w, http.StatusOK, m.ID, jsonrpc.CodeMethodNotFound, text)
	}
	return to, nil, false
}
