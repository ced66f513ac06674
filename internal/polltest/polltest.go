// Package polltest waits in tests for what other processes and goroutines do, where
// nothing announces it, and reads what they write meanwhile.
package polltest

import (
	"testing"
	"time"
)

// Polls start at firstPause, for what takes no time on an idle machine, and slow down to
// lastPause, so that waiting does not keep a busy machine busier.
const (
	firstPause = time.Millisecond
	lastPause  = 50 * time.Millisecond
)

// Until polls ok until it returns true. If it does not within limit, the test fails at
// once with what, a sentence such as "the box is on disk".
func Until(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	if !Soon(limit, ok) {
		t.Fatalf("not within %v: %s", limit, what)
	}
}

// Soon polls ok and reports whether it returned true within limit.
func Soon(limit time.Duration, ok func() bool) bool {
	end := time.Now().Add(limit)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		if ok() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		time.Sleep(pause)
	}
}
