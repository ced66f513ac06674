package mcpkit

import (
	"sync"
	"time"
)

// A questionClock adds up the time during which the server waits for answers to its
// questions. That time does not count for the time-outs of requests to the server. The
// zero value is ready to use.
type questionClock struct {
	mu    sync.Mutex
	open  int           // guarded by mu: unanswered questions
	since time.Time     // guarded by mu: when the first of them began
	total time.Duration // guarded by mu: time before since
}

// begin records the start of a question, and end its answer.
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

// elapsed returns the total time with unanswered questions.
func (p *questionClock) elapsed() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open > 0 {
		return p.total + time.Since(p.since)
	}
	return p.total
}
