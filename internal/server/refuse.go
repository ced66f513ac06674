package server

import (
	"encoding/json"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/server/envelope"
)

// codeRefused is the code of refusals about sessions and access.
const codeRefused = -32000

func (s *Server) refuse(w http.ResponseWriter, status int, id json.RawMessage, code int64, text string) {
	s.refuseWith(w, status, id, &jsonrpc.Error{Code: code, Message: text})
}

func (s *Server) refuseWith(w http.ResponseWriter, status int, id json.RawMessage, e *jsonrpc.Error) {
	s.log.Debug("refuse request", logkey.Status, status, logkey.Error, e.Message)
	if s.opts.Refused != nil {
		s.opts.Refused(status)
	}
	writeRefusal(w, status, id, e)
}

func (s *Server) refuseMethod(w http.ResponseWriter, allow string) {
	w.Header().Set("Allow", allow)
	s.refuse(w, http.StatusMethodNotAllowed, nil, codeRefused, "Method Not Allowed")
}

func (s *Server) refuseDraining(w http.ResponseWriter, id json.RawMessage) {
	w.Header().Set("Retry-After", "5")
	w.Header().Set("Connection", "close")
	s.refuse(w, http.StatusServiceUnavailable, id, codeRefused, "The server is shutting down")
}

// refuseBusy refuses a request because a limit of the whole server is reached.
func (s *Server) refuseBusy(w http.ResponseWriter, id json.RawMessage, text string) {
	w.Header().Set("Retry-After", "1")
	s.refuse(w, http.StatusServiceUnavailable, id, codeRefused, text+": try again in a moment")
}

func writeRefusal(w http.ResponseWriter, status int, id json.RawMessage, e *jsonrpc.Error) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(envelope.ErrorReply(id, e)) // a client that is gone does not miss it
}
