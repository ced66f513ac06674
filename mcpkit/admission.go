package mcpkit

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// ErrTooManyValues reports a result that was not decoded because it has more JSON values
// than Limits.Values.
var ErrTooManyValues = errors.New("the result has too many values")

const (
	// valueMemory is about the memory that a decoded JSON value takes at most: an object
	// with one member has two values and takes 360 bytes.
	valueMemory = 200
	// copies is the number of copies of a message that exist while it is decoded.
	copies = 4
)

// admission accounts for memory, see [WithAdmission].
type admission func(ctx context.Context, memory int) error

// admissionKey is the key of an admission in a context.
type admissionKey struct{}

// WithAdmission returns a context for requests. Before the result of such a request is
// decoded, admit is called with about the memory that this takes, in bytes. admit may wait
// until ctx ends; the connection reads no further message meanwhile. The request fails with
// the error that admit returns. The caller accounts for the memory until it drops the
// result. A later call of admit replaces the earlier one: the memory is 0 when the result
// was dropped because the server asked for input instead.
func WithAdmission(ctx context.Context, admit func(ctx context.Context, memory int) error) context.Context {
	return context.WithValue(ctx, admissionKey{}, admission(admit))
}

// A pendingRequest is a request in progress. Its key in the context of the request is pendingRequestKey.
type (
	pendingRequest struct {
		admit  admission               // nil: the results need no admission
		refuse context.CancelCauseFunc // fails the request
		ids    []jsonrpc.ID            // guarded by connState.mu: of the messages that carried the request
	}
	pendingRequestKey struct{}
)

// newPendingRequest returns the context for a request and its pendingRequest.
func newPendingRequest(ctx context.Context) (context.Context, *pendingRequest) {
	f := new(pendingRequest)
	f.admit, _ = ctx.Value(admissionKey{}).(admission)
	ctx, f.refuse = context.WithCancelCause(ctx)
	return context.WithValue(ctx, pendingRequestKey{}, f), f
}

func pendingRequestOf(ctx context.Context) *pendingRequest {
	f, _ := ctx.Value(pendingRequestKey{}).(*pendingRequest)
	return f
}

// dropResult accounts for a result that the connection has dropped.
func dropResult(ctx context.Context) {
	if f := pendingRequestOf(ctx); f != nil && f.admit != nil {
		_ = f.admit(ctx, 0) // takes nothing
	}
}

// expected is a response that needs admission.
type expected struct {
	ctx    context.Context
	flight *pendingRequest

	mu     sync.Mutex // held while the admission waits
	came   bool       // guarded by mu
	memory int        // guarded by mu: that was admitted
}

// expect has the response to a request wait for admission, if it needs one, until forget.
func (c *connState) expect(ctx context.Context, id jsonrpc.ID) {
	f := pendingRequestOf(ctx)
	if f == nil || f.admit == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.expected == nil {
		c.expected = make(map[jsonrpc.ID]*expected)
	}
	if c.expected[id] == nil { // otherwise the message is sent again
		c.expected[id] = &expected{ctx: ctx, flight: f}
		f.ids = append(f.ids, id)
	}
}

// forget forgets the responses that a request expects.
func (c *connState) forget(f *pendingRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range f.ids {
		delete(c.expected, id)
	}
}

// maxArriving bounds the messages of a server over HTTP that are not complete, as a multiple
// of the size of the largest one.
const maxArriving = 8

var (
	errArriving       = errors.New("the server sends too many large messages at once")
	errSecondResponse = errors.New("the server sent a second, larger response")
	errOddEvent       = errors.New("the server sent a response in an event of another type")
	errNoMessage      = errors.New("the server sent data that is no message")
)

// admit returns an error if a message must not be decoded. id is that of the request for a
// response, otherwise it is not valid. f is the request that the error refuses; nil if it
// refuses none.
//
// A server may send a response on the stream of another request, and send it twice.
func (c *connState) admit(id jsonrpc.ID, size, values int) (f *pendingRequest, err error) {
	c.mu.Lock()
	e := c.expected[id]
	c.mu.Unlock()
	if e != nil {
		f = e.flight
	}
	if values > c.maxValues {
		return f, fmt.Errorf("%w: more than %d", ErrTooManyValues, c.maxValues)
	}
	if e == nil {
		return nil, nil
	}
	memory := copies*size + valueMemory*values
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !e.came:
		e.came = true
		if err = f.admit(e.ctx, memory); err == nil {
			e.memory = memory
		}
		return f, err
	case memory > e.memory:
		return nil, errSecondResponse
	}
	return nil, nil // the SDK decodes one of them
}
