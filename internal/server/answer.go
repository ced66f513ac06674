package server

import (
	"context"
	"encoding/json"
	"math"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/server/envelope"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// answer ends a call over HTTP and delivers its answer: an encoded result, or an error.
// The first answer counts.
func (s *Server) answer(cl *call, result json.RawMessage, err error) {
	if cl.conn != nil && !cl.conn.take(cl) {
		return
	}
	s.end(cl)
	if cl.cancelled.Load() {
		s.deliver(cl, 0, nil)
		return
	}
	if err != nil {
		e := envelope.WireError(err)
		s.auditUnhandled(cl, e)
		s.deliver(cl, cl.errorStatus(e.Code), envelope.ErrorReply(cl.id, e))
		return
	}
	if cl.method == initialize {
		cl.stream.setHeader(headerSession, cl.conn.session)
	}
	s.deliver(cl, http.StatusOK, envelope.Reply(cl.id, result))
}

// smallAnswer is the size up to which an answer does not count against the limits of
// answers, except in a batch. Concurrent requests bound the number of these.
const smallAnswer = 16 << 10

// deliver hands the one answer of a call to its stream. Its bytes are charged to the owner
// until they are written. Without room for them, the client gets an error in its place.
func (s *Server) deliver(cl *call, status int, message []byte) {
	if cl.conn != nil {
		defer cl.conn.forget(cl.stream)
	}
	reserved, first := cl.finish()
	if !first {
		return
	}
	p, size := cl.caller.account(), int64(len(message))
	if size <= smallAnswer && !cl.stream.batch {
		size = 0
	}
	size = s.answers.clamp(p, size)
	if more := size - reserved; more < 0 {
		s.answers.give(p, -more)
	} else if e := s.answers.take(p, more); e != withinLimits {
		status, message, size = http.StatusOK, envelope.ErrorReply(cl.id, s.tooManyAnswers(p, e, int64(len(message)))), reserved
	}
	s.answers.give(p, cl.stream.answer(status, message, size))
}

// reserve reserves bytes for the answer of the call of a handler's context, before there is
// one, and reports false if there is no room. deliver corrects the amount.
func (s *Server) reserve(ctx context.Context, bytes int64) bool {
	cl := callIn(ctx)
	if cl == nil || cl.stream == nil { // not over HTTP, or a task, which has limits of its own
		return true
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	p := cl.caller.account()
	bytes = s.answers.clamp(p, bytes)
	if cl.delivered || s.answers.take(p, bytes) != withinLimits {
		return false
	}
	cl.reserved += bytes
	return true
}

// fits reserves the bytes of the answer of the call of a handler's context, which is about to end, or returns
// the error in its place if there is no room. Those that reserve has charged count.
func (s *Server) fits(ctx context.Context, bytes int64) error {
	cl := callIn(ctx)
	if cl == nil || cl.stream == nil || bytes <= smallAnswer && !cl.stream.batch { // as in reserve and deliver
		return nil
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	p := cl.caller.account()
	more := s.answers.clamp(p, bytes) - cl.reserved
	if cl.delivered || more <= 0 {
		return nil
	}
	if e := s.answers.take(p, more); e != withinLimits {
		return s.tooManyAnswers(p, e, bytes)
	}
	cl.reserved += more
	return nil
}

// tooManyAnswers returns the error in place of an answer of so many bytes, for which a limit has no
// room, and logs it now and then.
func (s *Server) tooManyAnswers(p account, e excess, bytes int64) *jsonrpc.Error {
	s.warnUnread.Do(func() {
		text := "answer not sent: its client does not read the answers that it has, or asks for too many at once"
		if e == totalExcess {
			text = "answer not sent: all clients together leave too many answers unread"
		}
		s.log.Warn(text, logkey.Who, p.owner, logkey.Bytes, bytes)
	})
	if e == totalExcess {
		return tools.TooManyAnswersInAll(int(bytes), int(s.answers.all))
	}
	return tools.TooManyAnswers(int(bytes), int(s.answers.clamp(p, math.MaxInt64)))
}

// finish returns what is reserved for the answer, and whether there was none before.
func (cl *call) finish() (reserved int64, first bool) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	reserved, first = cl.reserved, !cl.delivered
	cl.reserved, cl.delivered = 0, true
	return reserved, first
}

// abort ends a call whose answer panicked. It answers with an internal error, unless the
// stream already had the answer.
func (s *Server) abort(cl *call) {
	cl.conn.take(cl)
	s.end(cl)
	s.deliver(cl, http.StatusInternalServerError, envelope.ErrorReply(cl.id, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "Internal error"}))
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
