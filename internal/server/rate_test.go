package server

import (
	"testing"
	"time"
)

// TestRates_Owe: what a batch has beyond the burst delays later requests.
func TestRates_Owe(t *testing.T) {
	r, now := newRates(1, 5), time.Now()
	r.take("alice", 5, now)
	r.owe("alice", 250, now)
	if got := r.take("alice", 1, now); got != 251*time.Second {
		t.Errorf("after 255 requests at once, the next one waits %v, want 251 s at one a second", got)
	}
	if got := r.take("bob", 5, now); got != 0 {
		t.Errorf("another caller waits %v", got)
	}
}
