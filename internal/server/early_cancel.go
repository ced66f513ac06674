package server

import (
	"slices"
	"time"
)

const (
	// earlyCancelWait is how long a cancellation waits for its call. Clients send both in POSTs of
	// their own, of which either may come first.
	earlyCancelWait = 5 * time.Second
	// maxEarlyCancels bounds the cancellations that wait, and the ended calls that are remembered.
	maxEarlyCancels = 64
	// maxEarlyKey bounds the key of a call in both, in bytes.
	maxEarlyKey = 256
)

// earlyCancels are the cancellations of a session that came before their calls. A cancellation
// that came too late, after its call had ended, is none. The zero value has none.
type earlyCancels struct {
	waiting []earlyCancel // the oldest first
	ended   []string      // keys of calls that have ended, the oldest first
}

type earlyCancel struct {
	key string
	at  time.Time
}

// add remembers a cancellation, in place of the oldest if there are too many.
func (e *earlyCancels) add(key string, now time.Time) {
	if key == "" || len(key) > maxEarlyKey || slices.Contains(e.ended, key) {
		return
	}
	e.waiting = appendBounded(e.waiting, earlyCancel{key, now})
}

// take reports whether a call that begins was cancelled, and forgets that.
func (e *earlyCancels) take(key string, now time.Time) bool {
	found := false
	e.waiting = slices.DeleteFunc(e.waiting, func(c earlyCancel) bool {
		late := now.Sub(c.at) > earlyCancelWait
		found = found || c.key == key && !late
		return c.key == key || late
	})
	return found
}

// end remembers a call that has ended.
func (e *earlyCancels) end(key string) {
	if len(key) <= maxEarlyKey {
		e.ended = appendBounded(e.ended, key)
	}
}

// appendBounded appends to a list of at most maxEarlyCancels, of which it removes the first.
func appendBounded[T any](list []T, one T) []T {
	if len(list) >= maxEarlyCancels {
		list = slices.Delete(list, 0, 1)
	}
	return append(list, one)
}
