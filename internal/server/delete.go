package server

import (
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/server/auth"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// serveDELETE ends a session at once: its calls are cancelled, not waited for.
func (s *Server) serveDELETE(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get(headerSession)
	switch {
	case modernHeader(r):
		s.refuseMethod(w, "POST, OPTIONS")
		return
	case id == "":
		s.refuse(w, http.StatusBadRequest, nil, jsonrpc.CodeInvalidRequest, "Invalid request: DELETE needs the header Mcp-Session-Id")
		return
	}
	if !s.permit(w, r, nil, auth.Read) {
		return
	}
	if s.forwardSession(w, r, nil, nil) {
		return
	}
	begun := time.Now()
	_, release, ok := s.holdSession(w, r, nil)
	if !ok {
		return
	}
	release()
	s.sessions.remove(id, errDeleted)
	s.audit(callerIn(r), http.MethodDelete, &tools.Record{}, begun, nil, nil)
	w.WriteHeader(http.StatusNoContent)
}
