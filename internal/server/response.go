package server

import (
	"context"
	"errors"
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

	// wholeEvent is the size up to which an event is copied, to be one packet.
	wholeEvent = 16 << 10
	// maxQueue bounds the bytes of events that wait for a client; one event may exceed it.
	maxQueue = 1 << 20

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
	beat   time.Duration   // between heartbeats; 0: none, and no stream before the first event
	limit  time.Duration   // of the write of one part
	first  []byte          // written when the stream opens; a heartbeat if nil
	noJSON bool            // the client of a GET takes events only
	gone   <-chan struct{} // closed when the connection is

	mu    sync.Mutex
	w     http.ResponseWriter      // guarded by mu
	rc    *http.ResponseController // guarded by mu
	phase phase                    // guarded by mu
	timer *time.Timer              // guarded by mu; nil without heartbeats

	queueMu     sync.Mutex
	queue       []queuedEvent  // guarded by queueMu: the first is being written
	queueBytes  int            // guarded by queueMu
	queueClosed bool           // guarded by queueMu: nothing more is written
	draining    sync.WaitGroup // the goroutine that writes the queue
}

// respond returns a response that opens a stream after delay, or writes a heartbeat
// on an open one after beat. The connection of the client is gone when ctx is done.
func (s *Server) respond(ctx context.Context, w http.ResponseWriter, beat, delay time.Duration, first []byte) *response {
	r := &response{gone: ctx.Done(), beat: beat, limit: s.opts.Limits.Write, first: first, w: w, rc: http.NewResponseController(w)}
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

// event writes an event, in one piece if it is small, and flushes it.
func (r *response) event(head string, data []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := make([]byte, 0, len(r.first)+len(head)+min(len(data), wholeEvent)+len(eventEnd))
	switch {
	case r.phase == finished:
		return http.ErrHandlerTimeout
	case r.phase == unopened:
		if first := r.openLocked(); r.first != nil {
			b = append(b, first...)
		}
	}
	b = append(b, head...)
	if len(data) <= wholeEvent {
		b = append(append(b, data...), eventEnd...)
		data = nil
	}
	if err := r.writeLocked(b); err != nil {
		return err
	}
	if data == nil {
		return r.rc.Flush()
	}
	if err := r.writeLocked(data); err != nil {
		return err
	}
	if err := r.writeLocked([]byte(eventEnd)); err != nil {
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

// json writes a JSON body, which may come in parts. It reports false if the body has to be
// an event instead, or the response is finished.
func (r *response) json(status int, body ...[]byte) (ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase != unopened || r.noJSON {
		return false
	}
	size := 0
	for _, part := range body {
		size += len(part)
	}
	h := r.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("Content-Length", strconv.Itoa(size))
	r.phase = finished
	r.w.WriteHeader(status)
	for _, part := range body {
		if r.writeLocked(part) != nil {
			break // a client that is gone does not miss it
		}
	}
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

// finish ends the response, and reports whether anything was written. It waits for the
// write that is under way, and for the goroutine of the queue.
func (r *response) finish() (begun bool) {
	r.mu.Lock()
	if r.timer != nil {
		r.timer.Stop()
	}
	begun = r.phase != unopened
	r.phase = finished
	r.mu.Unlock()
	r.queueMu.Lock()
	r.queueClosed = true
	r.queueMu.Unlock()
	r.draining.Wait()
	return begun
}

// flush waits until the queue is written. The caller makes sure that nothing more comes.
func (r *response) flush() { r.draining.Wait() }

// enqueue has another goroutine write an event. An error means that the client does not
// read what is queued already, or that the response is finished.
func (r *response) enqueue(head string, data []byte) error {
	r.queueMu.Lock()
	defer r.queueMu.Unlock()
	if r.queueClosed || len(r.queue) >= maxReplayEvents || len(r.queue) > 0 && r.queueBytes+len(data) > maxQueue {
		return errSlowClient
	}
	r.queue = append(r.queue, queuedEvent{head, data})
	r.queueBytes += len(data)
	if len(r.queue) == 1 {
		r.draining.Go(r.drain)
	}
	return nil
}

// drain writes the events of the queue.
func (r *response) drain() {
	for {
		r.queueMu.Lock()
		e := r.queue[0]
		r.queueMu.Unlock()
		err := r.event(e.head, e.data)
		r.queueMu.Lock()
		r.queue = r.queue[1:]
		r.queueBytes -= len(e.data)
		if err != nil {
			r.queue, r.queueBytes = nil, 0 // the client is gone
		}
		left := len(r.queue)
		r.queueMu.Unlock()
		if left == 0 {
			return
		}
	}
}

type queuedEvent struct {
	head string
	data []byte
}

var errSlowClient = errors.New("the client does not read its events")

const eventEnd = "\n\n"

// frame returns what precedes the data of an event, which is one line; id may be empty.
func frame(name, id string) string {
	if id == "" {
		return "event: " + name + "\ndata: "
	}
	return "event: " + name + "\nid: " + id + "\ndata: "
}
