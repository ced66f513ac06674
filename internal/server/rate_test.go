package server

import (
	"strconv"
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

// TestRate_BatchBeyondBurst: requests wait for what a batch before them had beyond the burst.
func TestRate_BatchBeyondBurst(t *testing.T) {
	_, url := serve(t, func(o *Options) { o.Limits.Rate, o.Limits.Burst = 1, 5 })
	if res, body := do(t, "POST", url, nil, batchOf(105, "list_contexts", "{}")); res.StatusCode != 200 {
		t.Fatalf("a batch of 105: %s", answerOf(res, body))
	}
	res, body := do(t, "POST", url, nil, ping)
	if wait, err := strconv.Atoi(res.Header.Get("Retry-After")); res.StatusCode != 429 || err != nil || wait < 60 {
		t.Errorf("after a batch of 105 at a burst of 5 and one a second: %s, Retry-After %q, want about 100", answerOf(res, body), res.Header.Get("Retry-After"))
	}
}
