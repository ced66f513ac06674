package mcpserver

import (
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/mcpserver/envelope"
)

// known are the methods that the SDK serves; another one makes it refuse the
// whole POST in plain text.
var known = map[string]bool{
	"initialize": true, "ping": true, "server/discover": true,
	"tools/list": true, "tools/call": true,
	"prompts/list": true, "prompts/get": true, "completion/complete": true,
	"resources/list": true, "resources/templates/list": true, "resources/read": true,
	"resources/subscribe": true, "resources/unsubscribe": true,
	"logging/setLevel": true, listen: true,
	"notifications/initialized": true, "notifications/cancelled": true,
	"notifications/progress": true, "notifications/roots/list_changed": true,
}

// peek reads what decides where a body goes. What is no message, or no method
// of ours, it answers itself.
func (s *Server) peek(w http.ResponseWriter, r *http.Request, body []byte) (envelope.Envelope, bool) {
	modern := r.Header.Get(headerVersion) >= envelope.Modern
	if envelope.IsBatch(body) {
		return s.peekBatch(w, body)
	}
	m, refused := envelope.Parse(body)
	if refused != nil {
		s.refuse(w, http.StatusBadRequest, m.ID, refused.Code, refused.Message)
		return m, false
	}
	if !modern && !m.IsModern() && m.Method != "" && !known[m.Method] {
		if m.Kind == envelope.Notification {
			w.WriteHeader(http.StatusAccepted)
			return m, false
		}
		s.refuse(w, http.StatusOK, m.ID, jsonrpc.CodeMethodNotFound, "Method not found: "+m.Method)
		return m, false
	}
	return m, true
}

// peekBatch returns an envelope that stands for the batch: its method is
// initialize if any message's is.
func (s *Server) peekBatch(w http.ResponseWriter, body []byte) (all envelope.Envelope, ok bool) {
	elements, refused := envelope.Split(body)
	if refused != nil {
		s.refuse(w, http.StatusBadRequest, nil, refused.Code, refused.Message)
		return all, false
	}
	ids := make(map[string]bool)
	all.Kind = envelope.Notification
	for _, element := range elements {
		m, refused := envelope.Parse(element)
		if refused == nil && m.Method != "" && !known[m.Method] {
			refused = &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "Method not found: " + m.Method}
		}
		if refused == nil && m.Kind == envelope.Request && ids[string(m.ID)] {
			refused = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: two requests of the batch have one id"}
		}
		if refused != nil {
			s.refuse(w, http.StatusBadRequest, m.ID, refused.Code, refused.Message)
			return all, false
		}
		if m.Kind == envelope.Request {
			all.Kind = envelope.Request
			ids[string(m.ID)] = true
		}
		if all.Method != "initialize" {
			all.Method = m.Method
		}
		all.Version = max(all.Version, m.Version)
	}
	return all, true
}
