package server

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/server/envelope"
)

const (
	// writePart is what a client has the whole time limit of a write to take, so
	// that a slow one that reads is told from one that does not.
	writePart = 256 << 10
	// primeDelay is how long the first event of a stream, which carries
	// nothing but an id, waits to share a packet with the answer.
	primeDelay = 20 * time.Millisecond
	// maxRefusal bounds the text of a refusal.
	maxRefusal = 4 << 10
	// maxAtOnce is what is sent as JSON to a client that could take up a stream: a
	// longer answer may be cut while it is sent.
	maxAtOnce = 64 << 10
)

// heartbeat is a comment that says we are alive.
const heartbeat = ": hb\n\n"

type phase int

const (
	unopened phase = iota
	streaming
	plain
	refusing // a text/plain error of the SDK, collected to be sent as JSON-RPC
	tooLate  // the same on a stream that has begun
	done
)

// A response stands between the SDK and net/http. It turns the SDK's plain
// text refusals into JSON-RPC errors, keeps silent event streams alive, frames
// an error that the SDK writes raw onto a stream that has begun, and ends
// clients that do not read.
//
// The SDK's header map is its own: what a heartbeat opens, it opens without
// looking at a map that the SDK may be writing to.
type response struct {
	server *Server
	id     json.RawMessage   // of the request, for refusals
	header http.Header       // the SDK's
	beat   time.Duration     // 0: no heartbeats
	before func()            // called before the answer is written; may be nil
	skip   func([]byte) bool // reports whether what the SDK writes is not to be sent; may be nil
	primed func(string)      // is told the name of the SDK's stream; may be nil
	limit  time.Duration     // of a write: the SDK holds a lock of its session meanwhile

	// shallow leaves it to the timer to flush, so that the goroutine of a request
	// that lasts for hours does not keep the stack that writing takes, twice what
	// it needs to wait.
	shallow bool

	mu      sync.Mutex
	w       http.ResponseWriter      // guarded by mu
	rc      *http.ResponseController // guarded by mu
	phase   phase                    // guarded by mu
	status  int                      // guarded by mu, of a refusal
	refusal bytes.Buffer             // guarded by mu
	raw     bool                     // guarded by mu: frame what is written next
	held    bool                     // guarded by mu: something is written and not flushed
	timer   *time.Timer              // guarded by mu
	track   *track                   // guarded by mu: of a stream of ours; nil if it cannot be taken up again
}

func (s *Server) respond(w http.ResponseWriter, id json.RawMessage, beat time.Duration) *response {
	r := &response{server: s, id: id, header: make(http.Header), beat: beat, limit: s.opts.Limits.Write, w: w, rc: http.NewResponseController(w)}
	if beat > 0 {
		r.mu.Lock()
		r.timer = time.AfterFunc(beat, r.tick)
		r.mu.Unlock()
	}
	return r
}

// follow has a stream begin with what a client needs to take it up again, unless
// the answer comes first.
func (r *response) follow(t *track) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.track = t
	r.timer.Reset(min(primeDelay, r.beat))
}

// leave leaves the response to the SDK, which makes streams of its own.
func (r *response) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.track = nil
}

func (r *response) Header() http.Header { return r.header }

func (r *response) WriteHeader(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.openLocked(status)
}

func (r *response) openLocked(status int) {
	kind := r.header.Get("Content-Type")
	text := status >= 400 && strings.HasPrefix(kind, "text/plain")
	switch {
	case r.phase == streaming && text:
		r.phase, r.status = tooLate, status
		return
	case r.phase != unopened:
		r.raw = r.phase == streaming && status >= 400
		return
	case text:
		r.phase, r.status = refusing, status
		return
	}
	h := r.w.Header()
	for k, v := range r.header {
		h[k] = v
	}
	r.phase = plain
	if strings.HasPrefix(kind, eventStream) && status < 400 {
		r.phase = streaming
		h.Set("X-Accel-Buffering", "no")
	}
	r.w.WriteHeader(status)
}

func (r *response) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase == unopened {
		r.openLocked(http.StatusOK)
	}
	switch r.phase {
	case done:
		return 0, http.ErrHandlerTimeout
	case refusing, tooLate:
		r.refusal.Write(b[:min(len(b), maxRefusal-r.refusal.Len())])
		return len(b), nil
	}
	if r.skip != nil && r.skip(b) {
		if r.before != nil {
			r.before()
		}
		return len(b), nil
	}
	revealed := withCode(r.server.alias.reveal(b))
	if r.raw {
		r.raw = false
		if err := r.writeLocked(frame("message", "", bytes.TrimSpace(revealed))); err != nil {
			return 0, err
		}
		return len(b), r.flushLocked()
	}
	if r.before != nil && isAnswer(b) {
		r.before()
	}
	prime := !r.held && r.phase == streaming && bytes.HasPrefix(b, []byte("event: prime\n"))
	if prime && r.primed != nil {
		_, rest, _ := bytes.Cut(b, []byte("id: "))
		stream, _, _ := bytes.Cut(rest, []byte("_"))
		r.primed(string(stream))
	}
	err := r.writeLocked(revealed)
	r.held = prime
	if prime && r.timer != nil {
		r.timer.Reset(primeDelay)
	}
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// FlushError is what [http.ResponseController] calls.
func (r *response) FlushError() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held && r.timer != nil {
		return nil // the timer sees to it
	}
	if r.phase != streaming && r.phase != plain {
		return nil
	}
	if r.phase == streaming && r.shallow && r.timer != nil {
		r.held = true
		r.timer.Reset(0)
		return nil
	}
	return r.flushLocked()
}

// Flush implements [http.Flusher].
func (r *response) Flush() { _ = r.FlushError() }

// writeLocked writes to a client that reads, however slowly.
func (r *response) writeLocked(b []byte) error {
	for first := true; first || len(b) > 0; first = false {
		_ = r.rc.SetWriteDeadline(time.Now().Add(r.limit)) // not every writer has one
		part := b[:min(len(b), writePart)]
		if _, err := r.w.Write(part); err != nil {
			return err
		}
		b = b[len(part):]
	}
	return nil
}

func (r *response) flushLocked() error {
	r.held = false
	_ = r.rc.SetWriteDeadline(time.Now().Add(r.limit))
	return r.rc.Flush()
}

// tick sends what is held back, or a heartbeat.
func (r *response) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := []byte(heartbeat)
	switch r.phase {
	case unopened:
		first = r.streamLocked()
	case streaming:
	default:
		return
	}
	if !r.held {
		if err := r.writeLocked(first); err != nil {
			return
		}
	}
	if r.flushLocked() == nil {
		r.timer.Reset(r.beat)
	}
}

// streamLocked opens a stream of ours and returns what it begins with.
func (r *response) streamLocked() (first []byte) {
	h := r.w.Header()
	h.Set("Content-Type", eventStream)
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	r.w.WriteHeader(http.StatusOK)
	r.phase = streaming
	if r.track == nil {
		return []byte(heartbeat)
	}
	return frame("prime", r.track.keep(nil), nil)
}

// answer sends a whole answer: as JSON with a status of its own, or as the last
// event if a stream has begun or the client could take one up again.
func (r *response) answer(status int, message []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.track != nil && r.phase == unopened && len(message) > maxAtOnce {
		_ = r.writeLocked(r.streamLocked())
	}
	id := ""
	if r.track != nil && r.phase == streaming {
		id = r.track.keep(message)
	}
	if r.before != nil {
		r.before()
	}
	if id != "" && r.track.taken.Load() {
		return
	}
	if r.phase == streaming {
		_ = r.writeLocked(frame("message", id, message)) // a client that is gone does not miss it
		return
	}
	h := r.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("Content-Length", strconv.Itoa(len(message)))
	r.phase = plain
	r.w.WriteHeader(status)
	_ = r.writeLocked(message)
}

// frame makes an event of a stream; data is one line, and id may be empty.
func frame(name, id string, data []byte) []byte {
	b := make([]byte, 0, len(data)+len(id)+32)
	b = append(append(b, "event: "...), name...)
	if id != "" {
		b = append(append(b, "\nid: "...), id...)
	}
	b = append(append(b, "\ndata: "...), data...)
	return append(b, "\n\n"...)
}

// finish ends the response. Nothing is written after it.
func (r *response) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
	}
	switch r.phase {
	case refusing:
		if allow := r.header.Get("Allow"); allow != "" {
			r.w.Header().Set("Allow", allow)
		}
		r.server.refuse(r.w, r.status, r.id, refusalCode(r.status), strings.TrimSpace(r.refusal.String()))
	case tooLate:
		if r.id != nil { // else nobody waits for more than the end
			e := &jsonrpc.Error{Code: refusalCode(r.status), Message: strings.TrimSpace(r.refusal.String())}
			_ = r.writeLocked(frame("message", "", envelope.ErrorReply(r.id, e)))
		}
	}
	r.phase = done
}
