package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// maxPendingInputs bounds the calls that wait for a client's answer. Each keeps a
	// request open at a server.
	maxPendingInputs = 100
	// answerID is the key of the only input request in a result.
	answerID = "answer"
	// keepOutcome is how long the outcome of a call is kept that ended before its client
	// returned with the answer: a server need not wait for its question.
	keepOutcome = time.Minute
)

// A pendingInput is a request for input that was sent to a modern client as the result
// of its request. The call waits; the client repeats its request with the answer and
// the state from the result.
type pendingInput struct {
	call   *call
	params mcp.InputRequest
	answer chan mcp.InputResponse // capacity 1
	given  mcp.InputResponse      // set when the input is no longer pending
}

// deliver passes the answer to the call.
func (p *pendingInput) deliver() { p.answer <- p.given }

// inputRequired is the result of a request that needs input from its client.
type inputRequired struct {
	mcp.ResultBase
	requests mcp.InputRequestMap
	state    string
}

// requestInput requests input from the call's client and waits for the answer until ctx
// or the call ends.
func (c *call) requestInput(ctx context.Context, params mcp.InputRequest) (mcp.InputResponse, error) {
	q := &pendingInput{call: c, params: params, answer: make(chan mcp.InputResponse, 1)}
	select {
	case c.pending <- q:
	case <-ctx.Done():
		return nil, invalidRequest("the client has not answered: %v", context.Cause(ctx))
	case <-c.ctx.Done():
		return nil, invalidRequest("the call has ended: %v", context.Cause(c.ctx))
	}
	select {
	case a := <-q.answer:
		if a == nil {
			return nil, invalidRequest("%d calls wait for input already, which is the limit: try again later", maxPendingInputs)
		}
		return a, nil
	case <-ctx.Done():
		return nil, invalidRequest("the client has not answered: %v", context.Cause(ctx))
	case <-c.ctx.Done():
		return nil, invalidRequest("the call has ended: %v", context.Cause(c.ctx))
	}
}

// pendingInputs holds the pending inputs by state, an unguessable token that is valid
// for one answer.
type pendingInputs struct {
	mu      sync.Mutex
	byState map[string]*pendingInput // guarded by mu
}

// add registers a pending input and returns the result for the client. If there are too
// many, the call continues without an answer and ok is false.
func (p *pendingInputs) add(q *pendingInput) (result *inputRequired, ok bool) {
	state := rand.Text()
	p.mu.Lock()
	defer p.mu.Unlock()
	full := len(p.byState) >= maxPendingInputs
	for state, one := range p.byState {
		if ended, ok := one.call.endedAt(); ok && (full || time.Since(ended) > keepOutcome) {
			delete(p.byState, state)
		}
	}
	if len(p.byState) >= maxPendingInputs {
		q.answer <- nil
		return nil, false
	}
	if p.byState == nil {
		p.byState = make(map[string]*pendingInput)
	}
	p.byState[state] = q
	return &inputRequired{requests: mcp.InputRequestMap{answerID: q.params}, state: state}, true
}

var errNotPending = &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams,
	Message: "the call that requested input is not pending: it has ended, was answered already, belongs to another user, or was made with other arguments; repeat the call without requestState"}

// resume returns the call that a request continues, and its pending input; nil if the
// request starts a new call. The call may have ended, and then has its outcome. An answer
// of the wrong type leaves the input pending.
func (p *pendingInputs) resume(key string, from client, in inputParams) (*call, *pendingInput, error) {
	if in.state == "" {
		return nil, nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.byState[in.state]
	if q == nil || q.call.key != key || q.call.client.owner != from.owner {
		return nil, nil, errNotPending
	}
	given := in.responses[answerID]
	if err := q.validate(given); err != nil {
		return nil, nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
	}
	delete(p.byState, in.state)
	q.given = given
	return q.call, q, nil
}

func (p *pendingInput) validate(given mcp.InputResponse) error {
	var ok bool
	switch p.params.(type) {
	case *mcp.CreateMessageParams:
		_, ok = given.(*mcp.CreateMessageWithToolsResult)
	case *mcp.ElicitParams:
		_, ok = given.(*mcp.ElicitResult)
	case *mcp.ListRootsParams:
		_, ok = given.(*mcp.ListRootsResult)
	}
	if !ok {
		return errors.New("inputResponses has no matching response for key " + answerID)
	}
	return nil
}
