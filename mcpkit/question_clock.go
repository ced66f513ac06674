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
func (q *questionClock) begin() (end func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open == 0 {
		q.since = time.Now()
	}
	q.open++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.open--; q.open == 0 {
			q.total += time.Since(q.since)
		}
	}
}

// elapsed returns the total time with unanswered questions.
func (q *questionClock) elapsed() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open > 0 {
		return q.total + time.Since(q.since)
	}
	return q.total
}
