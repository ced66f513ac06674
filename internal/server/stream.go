package server

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/revision"
)

// A stream carries messages to the client: those that belong to the requests of one
// POST, or those of a session that belong to no request. One connection at a time
// delivers them. The events of a session's streams are kept, so that a client whose
// connection broke can resume the stream on another.
type stream struct {
	id      string // within the session; "" for the stream that belongs to no request
	session string // "" without: then events have no ids, and nothing is kept
	replay  *replay
	primed  bool // the first event, with index 0, carries only an id
	json    bool // the client takes one JSON body and no events
	batch   bool // answers in a JSON body are an array
	direct  bool // a result that comes before any event is a JSON body too
	queued  bool // events are written by another goroutine: the sender serves others too

	mu       sync.Mutex
	next     int               // guarded by mu: index of the next event
	pending  int               // guarded by mu: requests without an answer; never 0 before the end of the stream
	answers  []json.RawMessage // guarded by mu: of a JSON body
	charged  int64             // guarded by mu: bytes of the budget of answers that answers hold
	res      *response         // guarded by mu: delivers events; nil: no connection does
	detached chan struct{}     // guarded by mu: closed when res loses the stream
	done     chan struct{}     // closed when pending falls to 0
}

// errNotDelivered tells the SDK that a message has nowhere to go. The code is that of
// its error for a write that fails and leaves the connection usable.
var errNotDelivered = &jsonrpc.Error{Code: -32005, Message: "the stream of the request is closed"}

var errConflict = errors.New("another connection delivers this stream")

// newStream returns a stream with the given number of requests. Only those of a
// session keep their events.
func newStream(id, session, version string, pending int, replay *replay) *stream {
	s := &stream{id: id, session: session, replay: replay, pending: pending, done: make(chan struct{})}
	if s.primed = session != "" && id != "" && version >= revision.Resumable; s.primed {
		s.next = 1
	}
	return s
}

// first returns the event that a primed stream begins with; nil for others.
func (s *stream) first() []byte {
	if !s.primed {
		return nil
	}
	return []byte(frame("prime", s.eventID(0)) + eventEnd)
}

func (s *stream) eventID(index int) string {
	if s.session == "" {
		return ""
	}
	return s.id + "_" + strconv.Itoa(index)
}

// parseEventID splits the id of an event into that of its stream and its index.
func parseEventID(id string) (stream string, index int, ok bool) {
	stream, number, ok := strings.Cut(id, "_")
	index, err := strconv.Atoi(number)
	return stream, index, ok && err == nil && index >= 0
}

// attach has res deliver the events of a stream that has no connection yet. The
// returned channel is closed when res loses the stream.
func (s *stream) attach(res *response) (detached <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attachLocked(res)
}

func (s *stream) attachLocked(res *response) <-chan struct{} {
	s.res, s.detached = res, make(chan struct{})
	return s.detached
}

// detach ends the delivery by res, if it has the stream.
func (s *stream) detach(res *response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.res == res {
		s.detachLocked()
	}
}

func (s *stream) detachLocked() {
	if s.res != nil {
		s.res = nil
		close(s.detached)
	}
}

// resume has res deliver the stream from the event after index on, in place of the
// connection that has it. The client's old connection may have died without our
// notice, so the newer one wins.
func (s *stream) resume(res *response, index int, charge func([]event) bool) (detached <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var missed []event
	if index < s.next-1 {
		if missed, err = s.replay.after(s.session, s.id, index); err != nil {
			return nil, err
		}
	}
	if !charge(missed) {
		return nil, errNoRoom
	}
	if s.res != nil {
		if !s.queued {
			s.res.finish()
		}
		s.detachLocked()
	}
	s.writeLocked(res, missed)
	return s.attachLocked(res), nil
}

// listen has res deliver the stream that belongs to no request, from the oldest event
// that is kept.
func (s *stream) listen(res *response, charge func([]event) bool) (detached <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.res != nil {
		return nil, errConflict
	}
	kept := s.replay.newest(s.session, s.id)
	if !charge(kept) {
		return nil, errNoRoom
	}
	s.writeLocked(res, kept)
	return s.attachLocked(res), nil
}

// writeLocked writes kept events; those of a broken connection are written again to
// the next.
func (s *stream) writeLocked(res *response, events []event) {
	write := res.event
	if s.queued {
		write = res.enqueue
	}
	for _, e := range events {
		if write(frame("message", s.eventID(e.index)), e.data) != nil {
			return
		}
	}
}

// hasReader reports whether a connection delivers the stream, as far as is known: that of the
// POST, or one that has resumed it.
func (s *stream) hasReader() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.res == nil {
		return false
	}
	select {
	case <-s.res.gone:
		return false
	default:
		return true
	}
}

// send delivers a notification or a request of ours.
func (s *stream) send(message []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == 0 || s.json {
		return errNotDelivered
	}
	if s.eventLocked(message) != nil && s.session == "" {
		return errNotDelivered
	}
	return nil
}

// eventLocked keeps a message and writes it to the connection that has the stream.
func (s *stream) eventLocked(message []byte) error {
	index := s.next
	s.next++
	if s.session != "" {
		s.replay.append(s.session, s.id, index, message)
	}
	switch {
	case s.res == nil:
		return errNotDelivered
	case !s.queued:
		return s.res.event(frame("message", s.eventID(index)), message)
	}
	err := s.res.enqueue(frame("message", s.eventID(index)), message)
	if err != nil {
		s.detachLocked() // the client is too slow; it can resume the stream
	}
	return err
}

// answer delivers the answer to one of the stream's requests: as a JSON body with the
// status if nothing came before it, else as an event. A nil message is that of a
// request that the client has cancelled, which gets none: a JSON body without answers is
// empty, and accepted. The message holds charged bytes of the budget of answers; answer
// returns how many bytes are not held any more.
func (s *stream) answer(status int, message []byte, charged int64) (free int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending--
	if s.pending == 0 {
		defer close(s.done)
	}
	switch {
	case s.json:
		if s.res == nil {
			return charged // there is no other connection for it
		}
		if message != nil {
			s.answers = append(s.answers, message)
		}
		s.charged += charged
		switch {
		case s.pending > 0:
			return 0
		case len(s.answers) == 0:
			s.res.accept()
		case s.batch:
			s.res.json(http.StatusOK, s.bodyLocked()...)
		default:
			s.res.json(cmp.Or(status, http.StatusOK), s.answers[0])
		}
		return s.discardLocked()
	case message == nil:
		if s.session != "" {
			s.replay.skip(s.session, s.id, s.next-1)
		}
		if s.pending == 0 && s.res != nil {
			s.res.open() // an empty stream is the body of a POST without answers
		}
	case s.res != nil && (status != http.StatusOK || s.direct && (!s.primed || len(message) <= maxAtOnce)) && s.res.json(status, message):
	default:
		_ = s.eventLocked(message) // a client that is gone does not miss it
	}
	return charged
}

// bodyLocked returns the parts of a JSON body that is an array.
func (s *stream) bodyLocked() [][]byte {
	parts := make([][]byte, 0, 2*len(s.answers)+1)
	separator := []byte("[")
	for _, a := range s.answers {
		parts = append(parts, separator, a)
		separator = []byte(",")
	}
	return append(parts, []byte("]"))
}

// discard drops the answers of a JSON body that is not written, and returns the bytes of the
// budget that they held.
func (s *stream) discard() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.discardLocked()
}

func (s *stream) discardLocked() int64 {
	free := s.charged
	s.answers, s.charged = nil, 0
	return free
}

// setHeader sets a header of the response, unless that has begun.
func (s *stream) setHeader(name, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.res != nil {
		s.res.setHeader(name, value)
	}
}

// closeConnection ends the connection and has the client resume the stream after the
// delay: an event says so to clients that can.
func (s *stream) closeConnection(retry time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.res == nil || s.session == "" {
		return
	}
	if s.primed && retry > 0 {
		_ = s.res.event("event: close\nretry: "+strconv.FormatInt(retry.Milliseconds(), 10)+"\ndata: ", nil)
	}
	s.detachLocked()
}
