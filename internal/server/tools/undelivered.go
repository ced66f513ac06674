package tools

import "context"

type readerKey struct{}

// WithAnswerWaiter returns a context for a call that goes on without its connection, so that the client can
// fetch the answer over another one. reads reports whether a connection waits for the answer.
func WithAnswerWaiter(ctx context.Context, reads func() bool) context.Context {
	return context.WithValue(ctx, readerKey{}, reads)
}

// hasAnswerWaiter reports whether the answer of a call has a connection to go to, as far as is known. The
// answers of tasks are kept.
func hasAnswerWaiter(ctx context.Context) bool {
	reads, ok := ctx.Value(readerKey{}).(func() bool)
	return !ok || isTask(ctx) || reads()
}

type onlyReadsKey struct{}

// OnlyReads returns a context for calls of callers who may not run code. Their calls do not use up
// what a box reports once: the next call of a caller who may run code still reports it.
func OnlyReads(ctx context.Context) context.Context {
	return context.WithValue(ctx, onlyReadsKey{}, true)
}

// noteUndelivered has the next call in the box report the calls of tools by the code of this one: its
// client is gone, and a model that takes it for failed would repeat them.
func (c *Call) noteUndelivered() {
	if c.run != nil && c.found.Box != nil {
		c.found.NoteUndelivered(c.run)
	}
}
