package server

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/server/envelope"
)

const cancelled = "notifications/cancelled"

var errCancelled = errors.New("the client cancelled the call")

// A request is one of a session, while its POST is under way. If it is a direct call
// it has what the SDK has for its own: the client may cancel it by a message, and
// fetch the answer later if its connection dies.
type request struct {
	stream   string // of the session, that the answer of a direct call is an event of
	cancel   context.CancelCauseFunc
	answered chan struct{} // closed when the answer is given
	taken    atomic.Bool   // the answer goes to another connection
}

// requests are those of one session.
type requests struct {
	mu       sync.Mutex
	running  map[string]*request // guarded by mu: by id; nil if there are none
	unwanted map[string]bool     // guarded by mu: ids of requests that the client has cancelled; nil if there are none
}

// begin notes a request until end is called, once or more, and makes the context of a direct
// call: it does not end with the connection, since clients with sessions cancel by
// a message. There is no request if the session has another of the same id.
func (p *requests) begin(ctx context.Context, id string) (_ context.Context, q *request, end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running[id] != nil {
		return ctx, nil, nil
	}
	if p.running == nil {
		p.running = make(map[string]*request)
	}
	delete(p.unwanted, id)
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	q = &request{stream: rand.Text(), cancel: cancel, answered: make(chan struct{})}
	p.running[id] = q
	return ctx, q, sync.OnceFunc(func() {
		cancel(nil)
		close(q.answered)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.running, id)
		if len(p.running) == 0 {
			p.running = nil // most sessions are idle most of the time
		}
	})
}

// reuse forgets that the client has cancelled an earlier request with the id.
func (p *requests) reuse(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.unwanted, id)
}

// take keeps the answer of a direct call from the connection that asked, and
// returns what is closed when it is given. That is nil if there is nothing to wait
// for.
func (p *requests) take(stream string) (answered <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.running {
		if q.stream == stream {
			q.taken.Store(true)
			return q.answered
		}
	}
	return nil
}

// begin begins a request of a session, until end is called, with the context of a
// direct call. What a notification says about a direct call it does; the SDK is told
// as well, since it may have the call.
func (s *Server) begin(w http.ResponseWriter, r *http.Request, m *postBody) (ctx context.Context, end func(), ok bool) {
	ctx, end = r.Context(), func() {}
	switch {
	case m.session == nil:
	case m.batch:
		for id := range m.ids {
			m.session.requests.reuse(id)
		}
	case m.Kind == envelope.Request:
		if ctx, m.request, end = m.session.requests.begin(ctx, envelope.Key(m.ID)); m.request == nil {
			s.refuse(w, http.StatusBadRequest, m.ID, jsonrpc.CodeInvalidRequest, "Invalid request: another request with this id is under way")
			return ctx, nil, false
		}
	case m.Method == cancelled && m.Params["requestId"] != nil:
		m.session.requests.cancel(envelope.Key(m.Params["requestId"]))
	}
	return ctx, end, true
}

// awaitDirect waits for the answer of a direct call whose stream is to be taken up
// again: the SDK, which replays it, does not know that there is more to come.
func awaitDirect(ctx context.Context, r *http.Request, of *mcpSession) {
	stream, _, _ := strings.Cut(r.Header.Get(headerLastEvent), "_")
	answered := of.requests.take(stream)
	if answered == nil {
		return
	}
	select {
	case <-answered:
	case <-ctx.Done():
	}
}

// A track is where the events of a stream are kept for a client that comes back.
type track struct {
	events          *replay
	session, stream string
	taken           *atomic.Bool
	next            int
}

// keep keeps an event and returns its id, which the SDK reads when the client is
// back.
func (t *track) keep(data []byte) (id string) {
	_ = t.events.Append(context.Background(), t.session, t.stream, data) // it never fails
	id = t.stream + "_" + strconv.Itoa(t.next)
	t.next++
	return id
}
