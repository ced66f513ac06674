package server

import (
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	// writePart is how much a client must accept within the time limit of a write,
	// which tells a slow reader from a stuck one.
	writePart = 256 << 10
	// primeDelay is how long the first event of a resumable stream, which carries
	// only an id, waits to share a packet with the answer.
	primeDelay = 20 * time.Millisecond
	// maxAtOnce bounds the answers sent as JSON to a client that can resume a
	// stream: the connection may break during a longer one.
	maxAtOnce = 64 << 10

	heartbeat   = ": hb\n\n"
	streamHello = ": ok\n\n" // makes proxies forward the header of a silent stream
)

type phase int

const (
	unopened  phase = iota
	streaming       // an event stream
	finished
)

// A response writes an HTTP response: one JSON body, or a stream of events that
// heartbeats keep alive. Its methods may be called concurrently. After finish they
// write nothing.
type response struct {
	beat   time.Duration // between heartbeats; 0: none, and no stream before the first event
	limit  time.Duration // of the write of one part
	first  []byte        // written when the stream opens; a heartbeat if nil
	noJSON bool          // the client of a GET takes events only

	mu    sync.Mutex
	w     http.ResponseWriter      // guarded by mu
	rc    *http.ResponseController // guarded by mu
	phase phase                    // guarded by mu
	timer *time.Timer              // guarded by mu; nil without heartbeats
}

// respond returns a response that opens a stream after delay, or writes a heartbeat
// on an open one after beat.
func (s *Server) respond(w http.ResponseWriter, beat, delay time.Duration, first []byte) *response {
	r := &response{beat: beat, limit: s.opts.Limits.Write, first: first, w: w, rc: http.NewResponseController(w)}
	if beat > 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.timer = time.AfterFunc(min(delay, beat), r.tick)
	}
	return r
}

// tick opens the stream, or writes a heartbeat.
func (r *response) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := []byte(heartbeat)
	switch {
	case r.phase == finished:
		return
	case r.phase == unopened:
		b = r.openLocked()
	}
	if r.writeLocked(b) == nil && r.rc.Flush() == nil {
		r.timer.Reset(r.beat)
	}
}

// openLocked writes the header of an event stream and returns its first bytes.
func (r *response) openLocked() []byte {
	h := r.w.Header()
	h.Set("Content-Type", eventStream)
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	r.w.WriteHeader(http.StatusOK)
	r.phase = streaming
	if r.first == nil {
		return []byte(heartbeat)
	}
	return r.first
}

// event writes an event and flushes it.
func (r *response) event(e []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.phase == finished:
		return http.ErrHandlerTimeout
	case r.phase == unopened:
		if first := r.openLocked(); r.first != nil {
			e = append(first[:len(first):len(first)], e...)
		}
	}
	if err := r.writeLocked(e); err != nil {
		return err
	}
	return r.rc.Flush()
}

// open opens an event stream without an event, if nothing has been written.
func (r *response) open() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase == unopened && r.writeLocked(r.openLocked()) == nil {
		_ = r.rc.Flush()
	}
}

// openSoon opens an event stream in another goroutine: that of a request which
// lasts for hours would keep the stack that writing takes, twice what waiting needs.
func (r *response) openSoon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Reset(0)
	}
}

// json writes a JSON body. It reports false if the body has to be an event instead, or
// the response is finished.
func (r *response) json(status int, body []byte) (ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase != unopened || r.noJSON {
		return false
	}
	h := r.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	r.phase = finished
	r.w.WriteHeader(status)
	_ = r.writeLocked(body) // a client that is gone does not miss it
	return true
}

// accept writes a response without a body, unless the response has begun.
func (r *response) accept() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase != unopened {
		return
	}
	r.phase = finished
	r.w.WriteHeader(http.StatusAccepted)
}

// setHeader sets a header, unless the response has begun.
func (r *response) setHeader(name, value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase == unopened {
		r.w.Header().Set(name, value)
	}
}

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

// finish ends the response, and reports whether anything was written.
func (r *response) finish() (begun bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
	}
	begun = r.phase != unopened
	r.phase = finished
	return begun
}

// frame returns an event of a stream. data is one line; id may be empty.
func frame(name, id string, data []byte) []byte {
	b := make([]byte, 0, len(data)+len(id)+32)
	b = append(append(b, "event: "...), name...)
	if id != "" {
		b = append(append(b, "\nid: "...), id...)
	}
	b = append(append(b, "\ndata: "...), data...)
	return append(b, "\n\n"...)
}
