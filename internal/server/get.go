package server

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/server/auth"
)

func (s *Server) serveGET(w http.ResponseWriter, r *http.Request) {
	accept := parseAccept(r.Header.Values("Accept"))
	switch {
	case accept.stream && r.Method == http.MethodGet:
		s.serveStream(w, r)
	case accept.none || accept.any || accept.json || accept.html:
		if s.permit(w, r, nil, auth.Metrics) {
			s.serveStatus(w, r, accept.html && !accept.json)
		}
	default:
		s.refuse(w, http.StatusNotAcceptable, nil, jsonrpc.CodeInvalidRequest, "Not Acceptable: use text/event-stream for the stream or application/json for the status")
	}
}

// serveStream serves the stream of a session that no call has opened, or goes on
// with one whose connection is gone.
func (s *Server) serveStream(w http.ResponseWriter, r *http.Request) {
	switch {
	case modernHeader(r):
		s.refuseMethod(w, "POST, OPTIONS")
		return
	case r.Header.Get(headerSession) == "":
		// So begins a client of the transport before Streamable HTTP, and one of
		// Streamable HTTP that looks for a stream before it has a session.
		w.Header().Set("Allow", "POST, OPTIONS")
		s.refuse(w, http.StatusMethodNotAllowed, nil, codeRefused, "Method Not Allowed: a stream needs the header Mcp-Session-Id of a session. "+
			"The older HTTP+SSE transport of revision 2024-11-05 is not served: use Streamable HTTP (\"type\": \"http\") at this URL")
		return
	case s.draining.Load():
		s.refuseDraining(w, nil)
		return
	}
	if !s.permit(w, r, nil, auth.Read) {
		return
	}
	of, release, ok := s.holdSession(w, r, nil)
	if !ok {
		return
	}
	defer release()
	leave, ok := s.listening.enter(callerIn(r).owner())
	if !ok {
		s.refuseRate(w, nil, time.Second, "Too many open streams of this user")
		return
	}
	defer leave()
	if !s.streams.enter(1, s.opts.Limits.Streams) {
		s.refuseBusy(w, nil, "Too many open streams")
		return
	}
	defer s.streams.add(-1)
	ctx, unbind := callerIn(r).bound(r.Context(), true)
	defer unbind()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(of.ended, func() { cancel(context.Cause(of.ended)) })()
	clearWriteDeadline(http.NewResponseController(w))
	res := s.respond(w, nil, s.opts.Limits.Heartbeat)
	defer res.finish()
	res.shallow = true
	res.skip = of.requests.answersUnwanted
	awaitDirect(ctx, r, of)
	stream, _, resumed := strings.Cut(r.Header.Get(headerLastEvent), "_")
	if resumed {
		of.streamOwners.take(ctx, stream)
	}
	defer of.streamOwners.hold(stream, cancel)()
	s.stateful.ServeHTTP(res, r.WithContext(ctx))
	if !res.begun() {
		// The stream is over and has nothing that the client does not know. Clients take
		// this status as the end, and another one as a reason to come back.
		s.refuseMethod(w, "POST, DELETE, OPTIONS")
	}
}
