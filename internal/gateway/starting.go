package gateway

import (
	"context"
	"time"
)

// startNotice is the time after which somebody who waits for a server hears that it starts. A
// server that runs already answers sooner.
const startNotice = 250 * time.Millisecond

type startingKey struct{}

// WithStarting returns a context for ServerTools and CallTool that call f with the name of a
// server if they wait for it to start, or with "" for all servers that have never been listed.
// f must not block.
func WithStarting(ctx context.Context, f func(server string)) context.Context {
	return context.WithValue(ctx, startingKey{}, f)
}

// awaitsStart tells who called that it waits for a server, unless stop is called soon.
func awaitsStart(ctx context.Context, server string) (stop func()) {
	f, _ := ctx.Value(startingKey{}).(func(string))
	if f == nil {
		return func() {}
	}
	t := time.AfterFunc(startNotice, func() { f(server) })
	return func() { t.Stop() }
}
