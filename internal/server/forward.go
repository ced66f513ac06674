package server

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/fleet"
	"github.com/glovebox-dev/glovebox/internal/server/envelope"
	"github.com/glovebox-dev/glovebox/internal/server/tasks"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

const (
	// headerForwarded says why another server has forwarded a request: to the server of its
	// session, which may forward a call once more, to the server of the box, and no further,
	// so that no request goes in circles. A client that sends it gets what this server has.
	headerForwarded  = "Glovebox-Forwarded"
	forwardedSession = "session"
	forwardedCall    = "call"
	// headerStopping marks the answer of a server that is stopping to a request that another
	// one has forwarded. It has not begun to serve it, and soon leaves its boxes to others.
	headerStopping = "Glovebox-Stopping"
	// reachFor bounds the attempts to reach another server: longer than the fleet needs to
	// notice that a server is gone, and shorter than clients wait.
	reachFor = 40 * time.Second
	// reachEvery is the interval of the attempts.
	reachEvery = time.Second
	// dialFor bounds one attempt.
	dialFor = 3 * time.Second
	// watchEvery is the interval at which a server checks that another one, which it has
	// forwarded a request to, still lives: a connection does not show that its process hangs.
	watchEvery = 2 * time.Second
	// locateAttempts bounds how often a box is looked for again that others take over meanwhile.
	locateAttempts = 3
)

// Peers are the servers that share boxes with this one.
type Peers struct {
	Fleet fleet.Fleet
	Boxes *box.Manager
}

// peers returns the servers that a request can be forwarded to; nil if there are none, or the
// request has been forwarded, unless for the given reason.
func (s *Server) peers(r *http.Request, unless string) *Peers {
	if s.opts.Peers == nil {
		return nil
	}
	for _, why := range r.Header.Values(headerForwarded) {
		if why != unless {
			return nil
		}
	}
	return s.opts.Peers()
}

// newSessionID returns the id of a new session, which names this server among others.
func (s *Server) newSessionID(random string) string {
	if self := s.serverName(); self != "" {
		return fleet.ID(self, random)
	}
	return random
}

// serverName names this server in ids; "" without others.
func (s *Server) serverName() string {
	if s.opts.Peers != nil {
		if o := s.opts.Peers(); o != nil {
			return o.Fleet.Self()
		}
	}
	return ""
}

// forwardSession forwards a request of a session, or about a task, of another server. It
// reports whether the request is served: one of a server that is gone is not, and gets the
// answer for a session that does not exist, so that the client begins another one. A client
// that names many servers which do not exist is refused.
func (s *Server) forwardSession(w http.ResponseWriter, r *http.Request, m *postBody, body []byte) bool {
	o := s.peers(r, "")
	if o == nil {
		return false
	}
	var id json.RawMessage
	name := ""
	if !modernHeader(r) {
		name = r.Header.Get(headerSession)
	}
	if m != nil {
		id = m.ID
		if !m.batch && name == "" && tasks.Serves(m.Method) {
			_ = json.Unmarshal(m.Params["taskId"], &name)
		}
	}
	server := fleet.ServerOf(name)
	if server == "" || server == o.Fleet.Self() {
		return false
	}
	if r.Method == http.MethodDelete { // it takes no place as long as it is short
		p := callerIn(r).account()
		if e := s.inFlight.take(p, 1); e != withinLimits {
			s.refuseExcess(w, r, nil, e, "Too many requests in flight")
			return true
		}
		defer s.inFlight.give(p, 1)
	}
	gone, wait := s.lookups.look(r.Context(), o.Fleet, callerIn(r).rateKey, server)
	if wait > 0 {
		s.refuseRate(w, r, id, wait, "Too many ids of unknown servers")
		return true
	}
	if gone {
		return false
	}
	client := r.Context()
	ctx := client
	if m == nil || m.Kind != envelope.Request || m.Method == methodListen { // nothing waits for its end
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		go func() {
			select {
			case <-s.stopping:
				cancel(errStopping)
			case <-ctx.Done():
			}
		}()
	}
	if s.forward(w, r.WithContext(ctx), o.Fleet, &forwarding{client: client, server: server, why: forwardedSession, id: id, body: body}) {
		return true
	}
	s.lookups.left(server)
	return false
}

// forwardStream is forwardSession for a GET, which takes a place among the streams.
func (s *Server) forwardStream(w http.ResponseWriter, r *http.Request) bool {
	if o := s.peers(r, ""); o == nil {
		return false
	} else if server := fleet.ServerOf(r.Header.Get(headerSession)); server == "" || server == o.Fleet.Self() {
		return false
	}
	p := callerIn(r).account()
	if e := s.streams.take(p, 1); e != withinLimits {
		s.refuseExcess(w, r, nil, e, "Too many open streams")
		return true
	}
	defer s.streams.give(p, 1)
	return s.forwardSession(w, r, nil, nil)
}

// forwardCall forwards a call into a box that another server has. If that server is gone,
// this one takes the box over, and the call is not served yet.
func (s *Server) forwardCall(w http.ResponseWriter, r *http.Request, m *postBody, to target, body []byte) (served bool) {
	o := s.peers(r, forwardedSession)
	if o == nil {
		return false
	}
	name := boxOf(m)
	if name == "" {
		return false
	}
	owner := box.Owner(callerIn(r).owner())
	f := &forwarding{client: r.Context(), why: forwardedCall, id: m.ID, body: body, leave: []string{headerSession, headerLastEvent}}
	ctx := r.Context()
	if m.session != nil { // which the other server does not know: there, the call has none
		if to.version != "" {
			f.version = to.version
		}
		var end context.CancelCauseFunc
		ctx, end = context.WithCancelCause(ctx)
		defer end(nil)
		defer context.AfterFunc(m.session.ended, func() { end(errSessionEnded) })()
		done, ok := m.session.conn.forwarded(envelope.Key(m.ID), end)
		if !ok {
			s.refuseDuplicate(w, r, m.session.conn, m.ID)
			return true
		}
		defer func() { done(served) }()
	}
	if s.forwardToBox(w, r.WithContext(ctx), o, owner, name, f) {
		return true
	}
	// The search for a box, or its take-over, may take seconds. A call that was cancelled
	// meanwhile must not begin here, where nothing knows of it.
	if cause := context.Cause(ctx); cause == errCancelled || cause == errSessionEnded {
		s.giveUp(w, ctx, r, f)
		return true
	}
	return false
}

// forwardToBox is forwardCall for the box that an owner's callers name so.
func (s *Server) forwardToBox(w http.ResponseWriter, r *http.Request, o *Peers, owner box.Owner, name string, f *forwarding) (served bool) {
	for range locateAttempts {
		server, err := o.Boxes.Locate(r.Context(), owner, name)
		if err != nil || server == "" {
			return false // serving it here reports the error
		}
		f.server = server
		if s.forward(w, r, o.Fleet, f) {
			return true
		}
		// Of several servers that find out at once, one takes the box over. The others forward
		// their calls to it.
		if err := o.Boxes.Adopt(r.Context(), owner, name); box.CodeOf(err) != box.CodeHeld {
			return false
		}
	}
	return false
}

// boxOf returns the box that a call names; "" if it names none.
func boxOf(m *postBody) string {
	if m.batch || m.Kind != envelope.Request {
		return ""
	}
	switch m.Method {
	case callTool:
		if name := tools.CallBox(m.Params["arguments"]); len(name) <= maxBoxName {
			return name
		}
	case readResource:
		var uri string
		if json.Unmarshal(m.Params["uri"], &uri) == nil {
			return tools.ResourceBox(uri)
		}
	}
	return ""
}

// maxBoxName is longer than any id or name of a box, in bytes.
const maxBoxName = 256
