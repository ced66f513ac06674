package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// maxParked bounds the calls that wait for a client to come back with an
	// answer. Each holds a request at a server.
	maxParked = 100
	// answerID names the one question of a round.
	answerID = "answer"
)

// A question is put to a modern client: its request is answered with the question,
// the call is parked, and the client makes the request again with its answer and
// the state that it was given.
type question struct {
	call   *call
	params mcp.InputRequest
	answer chan mcp.InputResponse // has room for one
	given  mcp.InputResponse      // once it is taken out of the parked
}

// settle has the call go on.
func (q *question) settle() { q.answer <- q.given }

// ask is the result of a request that is answered with a question.
type ask struct {
	mcp.ResultBase
	requests mcp.InputRequestMap
	state    string
}

// put puts a question to the client of the call. The answer may take as long as ctx
// lets it.
func (c *call) put(ctx context.Context, params mcp.InputRequest) (mcp.InputResponse, error) {
	q := &question{call: c, params: params, answer: make(chan mcp.InputResponse, 1)}
	select {
	case c.asked <- q:
	case <-ctx.Done():
		return nil, wrong("the client has not answered: %v", context.Cause(ctx))
	case <-c.ctx.Done():
		return nil, wrong("the call has ended: %v", context.Cause(c.ctx))
	}
	select {
	case a := <-q.answer:
		if a == nil {
			return nil, wrong("the client cannot be asked: %d calls wait for answers already", maxParked)
		}
		return a, nil
	case <-ctx.Done():
		return nil, wrong("the client has not answered: %v", context.Cause(ctx))
	case <-c.ctx.Done():
		return nil, wrong("the call has ended: %v", context.Cause(c.ctx))
	}
}

// parked are the questions that clients have been given, by the state that they come
// back with: it cannot be guessed, and is good for one answer.
type parked struct {
	mu sync.Mutex
	by map[string]*question // guarded by mu
}

// park is what to answer a request with. If there are too many, the question is not
// put, and the call goes on without an answer.
func (p *parked) park(q *question) (*ask, bool) {
	state := rand.Text()
	p.mu.Lock()
	defer p.mu.Unlock()
	for state, one := range p.by { // those whose call did not wait
		if one.call.ctx.Err() != nil {
			delete(p.by, state)
		}
	}
	if len(p.by) >= maxParked {
		q.answer <- nil
		return nil, false
	}
	if p.by == nil {
		p.by = make(map[string]*question)
	}
	p.by[state] = q
	return &ask{requests: mcp.InputRequestMap{answerID: q.params}, state: state}, true
}

var errGone = &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams,
	Message: "the call that asked is not there: it has ended, was answered before or was asked of somebody else; make the call anew"}

// resume finds the call that a request goes on with; nil if it begins one. An answer
// of the wrong kind leaves the question as it is.
func (p *parked) resume(key string, from client, in inputs) (*call, *question, error) {
	if in.state == "" {
		return nil, nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.by[in.state]
	if q == nil || q.call.ctx.Err() != nil || q.call.key != key || q.call.client.owner != from.owner {
		return nil, nil, errGone
	}
	given := in.responses[answerID]
	if err := q.fits(given); err != nil {
		return nil, nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
	}
	delete(p.by, in.state)
	q.given = given
	return q.call, q, nil
}

func (q *question) fits(given mcp.InputResponse) error {
	var ok bool
	switch q.params.(type) {
	case *mcp.CreateMessageParams:
		_, ok = given.(*mcp.CreateMessageWithToolsResult)
	case *mcp.ElicitParams:
		_, ok = given.(*mcp.ElicitResult)
	case *mcp.ListRootsParams:
		_, ok = given.(*mcp.ListRootsResult)
	}
	if !ok {
		return errors.New("the input responses have no answer to the question " + answerID)
	}
	return nil
}
