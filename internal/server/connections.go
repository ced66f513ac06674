package server

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// spareConnections are accepted above the limit, to refuse their requests with the
	// reason. Further ones are closed without an answer.
	spareConnections = 32
	// restBeforeReclaim is how long a connection must be idle before a new one may
	// replace it: its client may be about to use it.
	restBeforeReclaim = time.Second
)

// connections counts HTTP connections. At the limit, a new connection replaces an idle
// one.
type connections struct {
	limit int

	mu   sync.Mutex
	open int                    // guarded by mu
	idle map[net.Conn]time.Time // guarded by mu: since when
}

type beyondLimit struct{}

// opened is for [http.Server.ConnContext].
func (cs *connections) opened(ctx context.Context, _ net.Conn) context.Context {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.open++
	if cs.open > cs.limit && !cs.reclaimLocked() {
		return context.WithValue(ctx, beyondLimit{}, true)
	}
	return ctx
}

func (cs *connections) reclaimLocked() bool {
	var oldest net.Conn
	var since time.Time
	for c, t := range cs.idle {
		if oldest == nil || t.Before(since) {
			oldest, since = c, t
		}
	}
	if oldest == nil || time.Since(since) < restBeforeReclaim {
		return false
	}
	delete(cs.idle, oldest) // one is reclaimed once; its end is counted when it is there
	_ = oldest.Close()
	return true
}

// changed is for [http.Server.ConnState].
func (cs *connections) changed(c net.Conn, state http.ConnState) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	switch state {
	case http.StateIdle:
		cs.idle[c] = time.Now()
	case http.StateActive:
		delete(cs.idle, c)
	case http.StateClosed, http.StateHijacked:
		delete(cs.idle, c)
		cs.open--
	}
}

func (cs *connections) count() int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.open
}

func (cs *connections) full() bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.open >= cs.limit+spareConnections
}

// A limitListener closes connections above the hard limit without an answer.
type limitListener struct {
	net.Listener
	connections *connections
}

func (d limitListener) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if !d.connections.full() {
			setAckTimeout(c)
			return c, nil
		}
		_ = c.Close()
	}
}

// tooMany reports whether a request came over a connection beyond the limit.
func tooMany(r *http.Request) bool {
	return r.Context().Value(beyondLimit{}) != nil
}
