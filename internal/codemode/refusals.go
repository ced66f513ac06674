package codemode

import (
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

const (
	// refusalBurst is more than the calls that a box makes at a time.
	refusalBurst = 20
	// refusalInterval bounds the lines after that.
	refusalInterval = 10 * time.Second
)

// refusals bounds the log lines of the calls of an owner that were not made. A program can
// make thousands of them in a second, which would push the lines of other owners out of a
// rotated log. Its methods may be called concurrently.
type refusals struct {
	limit   *rate.Limiter
	omitted atomic.Int64
}

func newRefusals() *refusals {
	return &refusals{limit: rate.NewLimiter(rate.Every(refusalInterval), refusalBurst)}
}

// line reports whether to log a refusal, and how many were left out before.
func (r *refusals) line() (omitted int64, ok bool) {
	if !r.limit.Allow() {
		r.omitted.Add(1)
		return 0, false
	}
	return r.omitted.Swap(0), true
}
