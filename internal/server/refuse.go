package server

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

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
	s.log.Debug("refuse request", logkey.Status, status, logkey.Code, e.Code) // the message may quote the request
	if s.opts.Refused != nil {
		s.opts.Refused(status)
	}
	writeRefusal(w, status, id, e)
}

func (s *Server) refuseMethod(w http.ResponseWriter, allow string) {
	w.Header().Set("Allow", allow)
	s.refuse(w, http.StatusMethodNotAllowed, nil, codeRefused, "Method Not Allowed")
}

func (s *Server) refuseDraining(w http.ResponseWriter, r *http.Request, id json.RawMessage) {
	s.auditRefusal(r, "stopping")
	if r.Header.Get(headerForwarded) != "" {
		w.Header().Set(headerStopping, "1")
	}
	w.Header().Set("Retry-After", "5")
	w.Header().Set("Connection", "close")
	s.refuse(w, http.StatusServiceUnavailable, id, codeRefused, "The server is shutting down")
}

// unknownSession is the reason of a refusal because there is no such MCP session.
const unknownSession = "unknown_session"

// refuseEnded refuses a request that names an MCP session which does not exist, or not for its
// account; reason says which to the audit log alone. Some clients pass the text to the model, which
// has sessions of its own.
func (s *Server) refuseEnded(w http.ResponseWriter, r *http.Request, id json.RawMessage, reason string) {
	s.auditRefusal(r, reason)
	text := "Session not found: the MCP session, which is the client's connection, has expired, or the server was restarted. " +
		"Reconnect the client: it sends initialize without Mcp-Session-Id."
	if !s.opts.Extend.Alone {
		text += " A sandbox usually outlives the connection: pass the session_id or context_id that an earlier result named."
	}
	s.refuse(w, http.StatusNotFound, id, codeRefused, text)
}

// refuseBusy refuses a request because a limit of the whole server is reached.
func (s *Server) refuseBusy(w http.ResponseWriter, r *http.Request, id json.RawMessage, text string) {
	s.auditRefusal(r, "server_limit")
	w.Header().Set("Retry-After", "1")
	s.refuse(w, http.StatusServiceUnavailable, id, codeRefused, text+": try again in a moment")
}

// refuseOwner refuses a request because a limit of its owner is reached.
func (s *Server) refuseOwner(w http.ResponseWriter, r *http.Request, id json.RawMessage, text string) {
	s.auditRefusal(r, "owner_limit")
	s.tooMany(w, id, time.Second, text+" of this user")
}

// refuseRate refuses a request of a caller that sends requests too fast.
func (s *Server) refuseRate(w http.ResponseWriter, r *http.Request, id json.RawMessage, wait time.Duration, text string) {
	s.auditRefusal(r, "rate")
	s.tooMany(w, id, wait, text)
}

func (s *Server) tooMany(w http.ResponseWriter, id json.RawMessage, wait time.Duration, text string) {
	seconds := int64((wait + time.Second - 1) / time.Second)
	w.Header().Set("Retry-After", strconv.FormatInt(max(seconds, 1), 10))
	s.refuse(w, http.StatusTooManyRequests, id, codeRefused, text+": try again in a moment")
}

// refuseExcess refuses a request for which a budget has no room.
func (s *Server) refuseExcess(w http.ResponseWriter, r *http.Request, id json.RawMessage, e excess, text string) {
	if e == ownerExcess {
		s.refuseOwner(w, r, id, text)
	} else {
		s.refuseBusy(w, r, id, text)
	}
}

func writeRefusal(w http.ResponseWriter, status int, id json.RawMessage, e *jsonrpc.Error) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(envelope.ErrorReply(id, e)) // a client that is gone does not miss it
}
