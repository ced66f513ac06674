package server

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/server/auth"
	"github.com/glovebox-dev/glovebox/internal/server/envelope"
	"github.com/glovebox-dev/glovebox/internal/server/tasks"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

func (s *Server) servePOST(w http.ResponseWriter, r *http.Request) {
	if c := callerIn(r); !c.has(auth.Read) { // before its body is read
		s.permit(w, r, nil, auth.Use)
		return
	}
	switch encoding := r.Header.Get("Content-Encoding"); {
	case mediaType(r.Header.Get("Content-Type")) != "application/json":
		s.refuse(w, http.StatusUnsupportedMediaType, nil, jsonrpc.CodeInvalidRequest, "Invalid request: Content-Type must be application/json")
		return
	case encoding != "" && !strings.EqualFold(encoding, "identity"):
		s.refuse(w, http.StatusUnsupportedMediaType, nil, jsonrpc.CodeInvalidRequest, "Invalid request: the body must not be compressed")
		return
	}
	body, free, ok := s.readBody(w, r)
	if !ok {
		return
	}
	a := &admission{freeBody: free, posting: true}
	defer a.leave()
	m, refused := classify(body)
	if refused != nil {
		if envelope.OverLimit(refused) {
			s.auditRefusal(r, requestLimit)
		}
		s.refuse(w, http.StatusBadRequest, m.ID, refused.Code, refused.Message)
		return
	}
	if !m.batch && !s.permit(w, r, m.ID, s.scopeOf(m.Method, m.Tool)) {
		return
	}
	// The other messages of a batch count too. One that is larger than the burst needs all of it, and
	// later requests wait for the rest.
	if more := min(len(m.messages), s.rate.burst) - 1; more > 0 {
		if wait := s.rate.take(callerIn(r).rateKey, more, time.Now()); wait > 0 {
			s.refuseRate(w, r, nil, wait, "Too many requests")
			return
		}
	}
	s.rate.owe(callerIn(r).rateKey, len(m.messages)-s.rate.burst, time.Now())
	if !m.batch && m.Kind == envelope.Request && m.Method == callTool && s.quota.full(callerIn(r).account()) {
		e := tools.TooManyCalls(s.opts.Limits.OwnerCalls)
		s.auditRefused(callerIn(r), s.listed(m.Tool), "calls", e)
		w.Header().Set("Retry-After", "1")
		s.refuseWith(w, http.StatusTooManyRequests, m.ID, e)
		return
	}
	leavePost, ok := s.admit(w, r, &m, a)
	if !ok {
		return
	}
	defer leavePost()
	if modernHeader(r) {
		if e := tasks.CheckHeaders(r.Header, m.Method, m.Params); e != nil {
			s.refuse(w, http.StatusBadRequest, m.ID, e.Code, e.Message)
			return
		}
	}
	if s.forwardSession(w, r, &m, body) {
		return
	}
	to, unreserve, ok := s.route(w, r, &m)
	if !ok {
		return
	}
	unreserve = sync.OnceFunc(unreserve)
	defer unreserve()
	if s.forwardCall(w, r, &m, to, body) {
		return
	}
	direct, ok := s.direct(r, &m)
	if m.Inexact && !ok {
		s.refuse(w, http.StatusBadRequest, m.ID, envelope.ErrInexact.Code, envelope.ErrInexact.Message)
		return
	}
	if !ok {
		if id, status, e := s.checkMessages(r, &m); e != nil {
			s.refuseWith(w, status, id, e)
			return
		}
	}
	s.exchange(w, r, &m, to, direct, a, unreserve)
}

// admit counts the requests of a POST against the limits of concurrent requests or streams,
// or refuses them. It counts the POST until leavePost is called. Notifications and responses
// cost little, may free resources, and are not counted. Each request of a batch counts; a
// batch above a limit takes all of it.
func (s *Server) admit(w http.ResponseWriter, r *http.Request, m *postBody, a *admission) (leavePost func(), ok bool) {
	p := callerIn(r).account()
	in, text := &s.requests, "Too many calls at once"
	switch {
	case m.Kind != envelope.Request:
		return func() {}, true
	case m.Method == methodListen:
		in, text = &s.streams, "Too many open streams"
	case tasks.Follows(m.Method): // tasks that hold all places must not keep their clients from polling them
		in = &s.polls
	}
	places := in.clamp(p, int64(m.calls))
	if e := in.take(p, places); e != withinLimits {
		s.refuseExcess(w, r, m.ID, e, text)
		return nil, false
	}
	a.admit(int64(m.calls), places, func(n int64) { in.give(p, n) })
	if m.Method != methodListen {
		s.posts.add(1) // before draining is read, so that Shutdown misses none
	}
	leavePost = func() {
		if m.Method != methodListen {
			s.posts.add(-1)
		}
	}
	if s.draining.Load() && !tasks.Follows(m.Method) {
		leavePost()
		s.refuseDraining(w, r, m.ID)
		return nil, false
	}
	return leavePost, true
}
