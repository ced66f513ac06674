package kube

import (
	"context"
	"time"
)

// SweepLater looks for Pods whose holders are gone, twice, as if d had passed in between.
func (e *Engine) SweepLater(ctx context.Context, d time.Duration) {
	holders, now := make(map[string]watched), time.Now()
	e.sweep(ctx, holders, time.Hour, now)
	e.sweep(ctx, holders, time.Hour, now.Add(d))
}

// WarmKnown returns the number of warm Pods that the engine may claim.
func (e *Engine) WarmKnown() (n int) {
	e.warm.mu.Lock()
	defer e.warm.mu.Unlock()
	for _, p := range e.warm.known {
		if isReady(p) {
			n++
		}
	}
	return n
}
