package server

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/logkey"
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

// serveStream serves the stream of a session that belongs to no request, or resumes the
// stream of a request.
func (s *Server) serveStream(w http.ResponseWriter, r *http.Request) {
	if !s.mayStream(w, r) || s.forwardStream(w, r) {
		return
	}
	sess, release, ok := s.holdSession(w, r, nil)
	if !ok {
		return
	}
	defer release()
	p := callerIn(r).account()
	if e := s.streams.take(p, 1); e != withinLimits {
		s.refuseExcess(w, r, nil, e, "Too many open streams")
		return
	}
	defer s.streams.give(p, 1)
	ctx, unbind := callerIn(r).bound(r.Context(), true)
	defer unbind()
	clearWriteDeadline(http.NewResponseController(w))
	beat := s.opts.Limits.Heartbeat
	var first []byte
	if r.Header.Get(headerLastEvent) == "" {
		first = []byte(streamHello)
	}
	res := s.respond(r.Context(), w, beat, beat, first)
	res.noJSON = true
	defer res.finish()

	charged := int64(0) // while the events are written
	exceeded := withinLimits
	charge := func(events []event) bool {
		for _, e := range events {
			charged += int64(len(e.data))
		}
		charged = s.answers.clamp(p, charged)
		if exceeded = s.answers.take(p, charged); exceeded != withinLimits {
			charged = 0
		}
		return exceeded == withinLimits
	}
	st, detached, err := s.attachGET(r, sess, res, charge)
	s.answers.give(p, charged)
	if err != nil {
		res.finish() // no heartbeat comes between
		s.refuseAttach(w, r, sess, exceeded, err)
		return
	}
	if st != nil {
		taken := false
		select {
		case <-st.done:
		case <-detached:
			taken = true
		case <-sess.ended.Done():
		case <-ctx.Done():
		}
		st.detach(res)
		if taken {
			return // another connection has the stream, or the client is too slow for it
		}
	}
	if !res.finish() && ctx.Err() == nil {
		// The stream is over and has nothing that the client does not know. Clients take
		// this status as the end, and another one as a reason to come back.
		s.refuseMethod(w, "POST, DELETE, OPTIONS")
	}
}

// mayStream reports whether a GET may have a stream of the session that it names, and refuses
// it otherwise.
func (s *Server) mayStream(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case modernHeader(r):
		s.refuseMethod(w, "POST, OPTIONS")
		return false
	case r.Header.Get(headerSession) == "":
		// Clients of the older HTTP+SSE transport begin with this request, and clients of
		// Streamable HTTP that try for a stream before they have a session.
		w.Header().Set("Allow", "POST, OPTIONS")
		s.refuse(w, http.StatusMethodNotAllowed, nil, codeRefused, "Method Not Allowed: a stream needs the header Mcp-Session-Id of a session. "+
			"The older HTTP+SSE transport of revision 2024-11-05 is not served: use Streamable HTTP (\"type\": \"http\") at this URL")
		return false
	case s.draining.Load():
		s.refuseDraining(w, r, nil)
		return false
	}
	return s.permit(w, r, nil, auth.Read)
}

// refuseAttach refuses a GET for which attachGET returned err. exceeded is the limit that refused the
// events, if it is errNoRoom.
func (s *Server) refuseAttach(w http.ResponseWriter, r *http.Request, sess *mcpSession, exceeded excess, err error) {
	switch {
	case errors.Is(err, errConflict):
		s.refuse(w, http.StatusConflict, nil, codeRefused, "Conflict: another connection has the stream of this session")
	case errors.Is(err, errNoRoom):
		s.refuseExcess(w, r, nil, exceeded, "Too many unread answers")
	case errors.Is(err, errBadEventID):
		s.refuse(w, http.StatusBadRequest, nil, jsonrpc.CodeInvalidRequest, fmt.Sprintf("Invalid request: %v", err))
	default:
		s.log.Debug("resume a stream", logkey.MCPSession, sess.id, logkey.Error, err)
		s.refuse(w, http.StatusBadRequest, nil, jsonrpc.CodeInvalidRequest, "Invalid request: events after the one in Last-Event-ID are not kept any more, or there is no such stream: repeat the request")
	}
}

var errNoRoom = errors.New("the events do not fit in the limit of unread answers")

var errBadEventID = errors.New("Last-Event-ID is not the id of an event of this server")

// attachGET has res deliver the stream that a GET asks for. A stream that is over is
// nil: res then has what the client missed. Kept events are written if charge has room for
// them, else the error is errNoRoom.
func (s *Server) attachGET(r *http.Request, sess *mcpSession, res *response, charge func([]event) bool) (st *stream, detached <-chan struct{}, err error) {
	if len(r.Header.Values(headerLastEvent)) == 0 {
		st = sess.conn.stream("")
		if detached, err = st.listen(res, charge); err == nil {
			res.openSoon()
		}
		return st, detached, err
	}
	id, index, ok := parseEventID(r.Header.Get(headerLastEvent))
	if !ok {
		return nil, nil, errBadEventID
	}
	if st = sess.conn.stream(id); st != nil {
		if detached, err = st.resume(res, index, charge); err == nil && id == "" {
			res.openSoon()
		}
		return st, detached, err
	}
	missed, err := s.replay.after(sess.id, id, index)
	if err != nil {
		return nil, nil, err
	}
	if !charge(missed) {
		return nil, nil, errNoRoom
	}
	over := newStream(id, sess.id, "", 0, s.replay)
	over.writeLocked(res, missed)
	return nil, nil, nil
}
