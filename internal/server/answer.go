package server

import (
	"encoding/json"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/server/envelope"
)

// answer ends a call over HTTP and delivers its answer: an encoded result, or an error.
// The first answer counts.
func (s *Server) answer(cl *call, result json.RawMessage, err error) {
	if cl.conn != nil && !cl.conn.take(cl) {
		return
	}
	s.end(cl)
	if cl.cancelled.Load() {
		cl.deliver(0, nil)
		return
	}
	if err != nil {
		e := envelope.WireError(err)
		cl.deliver(cl.errorStatus(e.Code), envelope.ErrorReply(cl.id, e))
		return
	}
	if cl.method == initialize {
		cl.stream.setHeader(headerSession, cl.conn.session)
	}
	cl.deliver(http.StatusOK, envelope.Reply(cl.id, result))
}

// deliver hands the one answer of a call to its stream.
func (cl *call) deliver(status int, message []byte) {
	if cl.conn != nil {
		defer cl.conn.forget(cl.stream)
	}
	if cl.delivered.CompareAndSwap(false, true) {
		cl.stream.answer(status, message)
	}
}

// abort ends a call whose answer panicked. It answers with an internal error, unless the
// stream already had the answer.
func (s *Server) abort(cl *call) {
	cl.conn.take(cl)
	s.end(cl)
	cl.deliver(http.StatusInternalServerError, envelope.ErrorReply(cl.id, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "Internal error"}))
}

// errorStatus is the HTTP status for an error that is the whole body.
func (cl *call) errorStatus(code int64) int {
	if !cl.modern {
		if code == jsonrpc.CodeInvalidRequest && !cl.handled.Load() {
			return http.StatusBadRequest // the SDK refused the message before our handlers saw it
		}
		return http.StatusOK
	}
	switch code {
	case jsonrpc.CodeMethodNotFound:
		return http.StatusNotFound
	case jsonrpc.CodeInvalidParams, mcp.CodeHeaderMismatch, mcp.CodeMissingRequiredClientCapabilities, mcp.CodeUnsupportedProtocolVersion:
		return http.StatusBadRequest
	}
	return http.StatusOK
}
