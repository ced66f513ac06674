package server

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/glovebox-dev/glovebox/internal/server/envelope"
)

const (
	// maxUnwanted bounds the cancelled requests that a session remembers. A client may
	// cancel what was answered long ago, and nothing tells when such an entry is of no
	// more use.
	maxUnwanted = 256
	// maxUnwantedID bounds the ids that are remembered, in bytes. A cancelled request
	// with a longer id may be answered all the same.
	maxUnwantedID = 256
)

// cancel cancels a direct call, if it is there, and remembers that the client wants
// no answer to the request, whoever serves it.
func (p *requests) cancel(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.unwanted) >= maxUnwanted || p.unwanted == nil {
		p.unwanted = make(map[string]bool)
	}
	if len(id) <= maxUnwantedID {
		p.unwanted[id] = true
	}
	if q := p.running[id]; q != nil {
		q.cancel(errCancelled)
	}
}

// isUnwanted reports whether the client has cancelled the request with this id.
func (p *requests) isUnwanted(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unwanted[id]
}

// answersUnwanted reports whether bytes that the SDK writes answer a request that
// the client has cancelled.
func (p *requests) answersUnwanted(b []byte) bool {
	p.mu.Lock()
	none := len(p.unwanted) == 0
	p.mu.Unlock()
	if none || !isAnswer(b) {
		return false
	}
	id := idOf(b)
	return id != nil && p.isUnwanted(envelope.Key(id))
}

// idOf returns the id in a message that the SDK writes, alone or as the data of an
// event; nil if there is none.
func idOf(b []byte) json.RawMessage {
	at := bytes.Index(b[:min(len(b), maxHead)], messageBegin)
	if at < 0 {
		return nil
	}
	var id json.RawMessage
	if json.NewDecoder(bytes.NewReader(b[at+len(messageBegin):])).Decode(&id) != nil {
		return nil
	}
	return id
}

// storesUnwanted reports whether an event of a session is not to be kept, since it
// answers a request that the client has cancelled.
func (s *Server) storesUnwanted(session string, data []byte) bool {
	of := s.sessions.find(session)
	return of != nil && of.requests.answersUnwanted(data)
}

// drop ends the response to a request that the client has cancelled: the body of a
// POST that opens a stream on which nothing follows.
func (r *response) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.before != nil {
		r.before()
	}
	if r.phase == unopened {
		r.header.Set("Content-Type", eventStream)
		r.header.Set("Cache-Control", "no-cache, no-transform")
		r.openLocked(http.StatusOK)
	}
}

// begun reports whether anything of a response was written, be it a status, and
// keeps heartbeats from beginning it from now on.
func (r *response) begun() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase == unopened {
		r.phase = done
		return false
	}
	return true
}
