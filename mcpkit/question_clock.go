package mcpkit

import (
	"sync"
	"time"
)

// A pause is the time in which a server waits for answers of its client, added up.
// The requests of the client are not late meanwhile. The zero value is none.
type questionClock struct {
	mu    sync.Mutex
	open  int           // guarded by mu: questions that are not answered
	since time.Time     // guarded by mu: of the first of them
	total time.Duration // guarded by mu: before that
}

// begin notes a question until end is called.
func (p *questionClock) begin() (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == 0 {
		p.since = time.Now()
	}
	p.open++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.open--; p.open == 0 {
			p.total += time.Since(p.since)
		}
	}
}

// length is that of the pause until now.
func (p *questionClock) length() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open > 0 {
		return p.total + time.Since(p.since)
	}
	return p.total
}
