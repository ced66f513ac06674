package mcpserver

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/glovebox-dev/glovebox/internal/mcpserver/envelope"
)

const (
	cancelled = "notifications/cancelled"

	// resumable is the first protocol revision whose clients learn at the
	// beginning of a stream how to take it up again.
	resumable = "2025-11-25"
)

var errCancelled = errors.New("the client cancelled the call")

// A directCall is a direct call in a session. It has what the SDK has for its own:
// the client may cancel it by a message, and fetch the answer later if its
// connection dies.
type directCall struct {
	stream   string // of the session, that the answer is an event of
	cancel   context.CancelCauseFunc
	answered chan struct{} // closed when the answer is given
}

// directCalls are those of one session that are under way.
type directCalls struct {
	mu      sync.Mutex
	running map[string]*directCall // guarded by mu: by id; nil if there are none
}

// begin notes a call until end is called. There is none if the session has another
// of the same id.
func (d *directCalls) begin(ctx context.Context, id string) (_ context.Context, c *directCall, end func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running[id] != nil {
		return ctx, nil, nil
	}
	if d.running == nil {
		d.running = make(map[string]*directCall)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	c = &directCall{stream: rand.Text(), cancel: cancel, answered: make(chan struct{})}
	d.running[id] = c
	return ctx, c, func() {
		cancel(nil)
		close(c.answered)
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.running, id)
		if len(d.running) == 0 {
			d.running = nil // most sessions are idle most of the time
		}
	}
}

// cancel cancels a call, if it is there.
func (d *directCalls) cancel(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.running[id]; c != nil {
		c.cancel(errCancelled)
	}
}

// answered is closed when the answer of a stream is given. It is nil if there is
// nothing to wait for.
func (d *directCalls) answered(stream string) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.running {
		if c.stream == stream {
			return c.answered
		}
	}
	return nil
}

// cancelDirect does what a notification says about a direct call. The SDK is told as
// well, since it may have the call.
func cancelDirect(m *posted) {
	if id := m.Params["requestId"]; m.session != nil && m.Method == cancelled && id != nil {
		m.session.direct.cancel(envelope.Key(id))
	}
}

// awaitDirect waits for the answer of a direct call whose stream is to be taken up
// again: the SDK, which replays it, does not know that there is more to come.
func awaitDirect(ctx context.Context, r *http.Request, of *mcpSession) {
	stream, _, _ := strings.Cut(r.Header.Get(headerLastEvent), "_")
	answered := of.direct.answered(stream)
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
