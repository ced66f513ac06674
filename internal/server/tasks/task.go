package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// maxRounds bounds how many times a task may ask for input.
const maxRounds = 16

type status string

const (
	statusWorking       status = "working"
	statusInputRequired status = "input_required"
	statusCompleted     status = "completed"
	statusFailed        status = "failed"
	statusCancelled     status = "cancelled"
)

func (s status) final() bool {
	return s == statusCompleted || s == statusFailed || s == statusCancelled
}

// A task is a call that its client polls.
type task struct {
	id      string
	owner   string
	uses    *uses // of the owner
	created time.Time
	expiry  *time.Timer
	cancel  context.CancelCauseFunc

	delivered chan struct{} // closed when its client has the result
	parked    chan struct{} // closed when it first waits for input
	answered  chan struct{} // gets a value when the client has answered all requests

	// Guarded by the mutex of Tasks:

	status    status
	updated   time.Time
	asked     time.Time // when its client last asked
	handed    bool      // its client has its id
	inPlace   bool      // its client gets the answer instead of the task
	wasTold   bool
	wasParked bool
	result    json.RawMessage     // of a completed one
	dropped   json.RawMessage     // in place of a result that was dropped; nil: it was not
	fault     *jsonrpc.Error      // of a failed one
	requests  mcp.InputRequestMap // without an answer
	responses mcp.InputResponseMap
}

func (t *task) setLocked(to status) {
	t.status, t.updated = to, time.Now()
}

func (t *task) failLocked(e *jsonrpc.Error) {
	t.fault = e
	t.setLocked(statusFailed)
}

// An outcome is the result or the error of a call.
type outcome struct {
	result mcp.Result
	err    error
}

// run serves the call, in one round for each time that it asks for input.
func (s *Tasks) run(ctx context.Context, t *task, call *mcp.CallToolRequest) (o outcome) {
	defer func() {
		if p := recover(); p != nil {
			s.opts.Log.Error("panic in a task", logkey.Panic, fmt.Sprint(p))
			o = outcome{err: &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "Internal error"}}
		}
	}()
	for range maxRounds {
		result, err := s.opts.Call(ctx, callTool, call)
		r, ok := result.(*mcp.CallToolResult)
		if err != nil || !ok || r.InputRequests == nil {
			return outcome{result, err}
		}
		responses, err := s.ask(ctx, t, r.InputRequests)
		if err != nil {
			return outcome{err: err}
		}
		params := *call.Params
		params.InputResponses, params.RequestState = responses, r.RequestState
		call = &mcp.CallToolRequest{Params: &params, Extra: call.Extra}
	}
	return outcome{err: fmt.Errorf("the tool asked for input more than %d times", maxRounds)}
}

// ask puts the task into the state input_required until its client has answered all
// requests.
func (s *Tasks) ask(ctx context.Context, t *task, requests mcp.InputRequestMap) (mcp.InputResponseMap, error) {
	if len(requests) == 0 {
		return nil, errBusy
	}
	s.mu.Lock()
	if t.status == statusWorking {
		t.requests, t.responses = maps.Clone(requests), make(mcp.InputResponseMap, len(requests))
		t.setLocked(statusInputRequired)
		if !t.wasParked {
			t.wasParked = true
			close(t.parked)
		}
	}
	s.mu.Unlock()
	select {
	case <-t.answered:
		s.mu.Lock()
		defer s.mu.Unlock()
		return t.responses, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// finish stores the outcome of the call in the task. It reports false if the client does
// not have the task yet, and so gets the outcome itself. A cancelled task stays so.
func (s *Tasks) finish(t *task, o outcome) (kept bool) {
	if s.answersInPlace(t) {
		return false
	}
	var result []byte
	if o.err == nil {
		result, o.err = encode(o.result)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.uses.running--
	defer s.disownLocked(t)
	if t.status.final() || s.tasks[t.id] != t {
		return true
	}
	t.requests = nil
	switch {
	case o.err != nil:
		t.failLocked(fault(o.err))
	case s.keepLocked(t, result):
		t.setLocked(statusCompleted)
	case len(result) > s.limits.Result:
		t.failLocked(&jsonrpc.Error{
			Code:    jsonrpc.CodeInternalError,
			Message: fmt.Sprintf("The result of %d bytes is too large for a task, which keeps at most %d; ask for less of it", len(result), s.limits.Result),
		})
	default:
		t.failLocked(&jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "The result is not kept: " + crowded})
	}
	return true
}

// answer is an [mcp.CallToolResult] with the member resultType, which the newest revision
// requires and the SDK does not export.
type answer struct {
	Meta       mcp.Meta      `json:"_meta,omitempty"`
	Content    []mcp.Content `json:"content"`
	Structured any           `json:"structuredContent,omitempty"`
	IsError    bool          `json:"isError,omitempty"`
	Type       string        `json:"resultType"`
}

func encode(result mcp.Result) ([]byte, error) {
	r, ok := result.(*mcp.CallToolResult)
	if !ok {
		return nil, fmt.Errorf("encode the result of a task: it is a %T", result)
	}
	a := answer{r.Meta, r.Content, r.StructuredContent, r.IsError, "complete"}
	if a.Content == nil {
		a.Content = []mcp.Content{}
	}
	return json.Marshal(a)
}

// answersInPlace reports whether the client does not have the task yet, and removes the
// task then: the client gets the answer in its place.
func (s *Tasks) answersInPlace(t *task) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.handed {
		return false
	}
	t.inPlace = true
	t.uses.running--
	s.forgetLocked(t)
	s.disownLocked(t) // if it was forgotten while it ran
	return true
}

// fault returns an error for the client.
func fault(err error) *jsonrpc.Error {
	if e := (*jsonrpc.Error)(nil); errors.As(err, &e) {
		return e
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}
}

const crowded = "the results of tasks take up all the memory that is reserved for them"

// Stand-ins for results that were dropped.
var (
	deliveredBefore = standIn("This result was delivered before and is no longer kept: " + crowded + ".")
	droppedEarly    = standIn("The call has run, but its result made room for the results of other users: " + crowded + ". Poll tasks soon after they end, and ask for less at once.")
)

// standIn returns a result with isError.
func standIn(text string) json.RawMessage {
	return json.RawMessage(`{"content":[{"type":"text","text":"` + text + `"}],"isError":true,"resultType":"complete"}`)
}
