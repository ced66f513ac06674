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
func (s *Server) answer(q *call, result json.RawMessage, err error) {
	if q.conn != nil && !q.conn.take(q) {
		return
	}
	s.end(q)
	if q.conn != nil {
		defer q.conn.forget(q.stream)
	}
	if q.cancelled.Load() {
		q.stream.answer(0, nil)
		return
	}
	if err != nil {
		e := envelope.WireError(err)
		q.stream.answer(q.errorStatus(e.Code), envelope.ErrorReply(q.id, e))
		return
	}
	if q.method == initialize {
		q.stream.setHeader(headerSession, q.conn.session)
	}
	q.stream.answer(http.StatusOK, envelope.Reply(q.id, result))
}

// errorStatus is the HTTP status for an error that is the whole body.
func (q *call) errorStatus(code int64) int {
	if !q.modern {
		if code == jsonrpc.CodeInvalidRequest && !q.handled.Load() {
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
