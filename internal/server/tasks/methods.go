package tasks

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/internal/truncate"
)

const (
	get    = "tasks/get"
	update = "tasks/update"
	cancel = "tasks/cancel"

	headerName = "Mcp-Name"
)

// maxID bounds how much of an unknown id an error repeats.
const maxID = 64

// Params are the parameters of all methods of the extension.
type Params struct {
	mcp.ParamsBase
	TaskID         string                     `json:"taskId"`
	InputResponses map[string]json.RawMessage `json:"inputResponses,omitempty"`
}

// GetMeta implements [mcp.Params] for nil too: middleware calls it before the check for
// parameters.
func (p *Params) GetMeta() map[string]any {
	if p == nil {
		return nil
	}
	return p.Meta.GetMeta()
}

// description is a task as clients see it.
type description struct {
	mcp.ResultBase
	ResultType    string              `json:"resultType"`
	TaskID        string              `json:"taskId"`
	Status        status              `json:"status"`
	CreatedAt     string              `json:"createdAt"`
	LastUpdatedAt string              `json:"lastUpdatedAt"`
	TTL           int64               `json:"ttlMs"`
	PollInterval  int64               `json:"pollIntervalMs"`
	Result        json.RawMessage     `json:"result,omitempty"`
	Error         *jsonrpc.Error      `json:"error,omitempty"`
	InputRequests mcp.InputRequestMap `json:"inputRequests,omitzero"`
}

// acknowledgement is the result of methods that return none.
type acknowledgement struct {
	mcp.ResultBase
	ResultType string `json:"resultType"`
}

func done() *acknowledgement { return &acknowledgement{ResultType: "complete"} }

// describeLocked describes a task without its outcome.
func (s *Tasks) describeLocked(t *task) *description {
	return &description{
		TaskID: t.id, Status: t.status,
		CreatedAt: clock(t.created), LastUpdatedAt: clock(t.updated),
		TTL: s.limits.TTL.Milliseconds(), PollInterval: s.limits.Poll.Milliseconds(),
	}
}

// clock formats a time as MCP does.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// Register registers the methods with the SDK. [Tasks.Serve] serves them.
func Register(s *mcp.Server) {
	for _, method := range []string{get, update, cancel} {
		err := mcp.AddReceivingCustomMethod(s, method, func(context.Context, *mcp.ServerSession, *Params) (*acknowledgement, error) {
			return nil, unknownMethod(method)
		})
		if err != nil {
			panic(err) // the SDK has a method of that name
		}
	}
}

// Serves reports whether a method is one of the extension.
func Serves(method string) bool { return method == get || method == update || method == cancel }

// Follows reports whether a method is about calls in flight only, so that a draining
// server serves it.
func Follows(method string) bool { return method == get || method == cancel }

// CheckHeaders checks that the header Mcp-Name of a modern HTTP request is the id of the
// task in its body.
func CheckHeaders(h http.Header, method string, params map[string]json.RawMessage) *jsonrpc.Error {
	if !Serves(method) {
		return nil
	}
	var id string
	if json.Unmarshal(params["taskId"], &id) != nil {
		return nil // the method refuses it
	}
	switch name := strings.Trim(h.Get(headerName), " \t"); name {
	case id:
		return nil
	case "":
		return &jsonrpc.Error{Code: mcp.CodeHeaderMismatch, Message: "Header mismatch: Mcp-Name is missing; " + method + " needs the task's id there"}
	}
	return &jsonrpc.Error{Code: mcp.CodeHeaderMismatch, Message: "Header mismatch: Mcp-Name is not the taskId of the body"}
}

// Serve is a middleware that serves the methods of the extension.
func (s *Tasks) Serve(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		var serve func(t *task, p *Params) (mcp.Result, error)
		switch method {
		case get:
			serve = s.getLocked
		case update:
			serve = s.updateLocked
		case cancel:
			serve = s.cancelLocked
		default:
			return next(ctx, method, req)
		}
		r, ok := req.(*mcp.ServerRequest[*Params])
		if !ok || r.Params == nil || !revision.IsModern(r.ProtocolVersion()) {
			return nil, unknownMethod(method)
		}
		if !declared(r.ClientCapabilities()) {
			return nil, missing()
		}
		if r.Params.TaskID == "" {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Missing required parameter: taskId"}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		t := s.findLocked(ownerOf(req), r.Params.TaskID)
		if t == nil {
			return nil, s.unknown(r.Params.TaskID)
		}
		if ctx.Value(onlyReadsKey{}) == nil {
			t.asked = time.Now()
			if method == get {
				t.tellLocked()
			}
		}
		return serve(t, r.Params)
	}
}

type onlyReadsKey struct{}

// OnlyReads returns a context for requests of callers who may not run code, and so are not the
// client of a task: a result that they have seen is still kept for it.
func OnlyReads(ctx context.Context) context.Context {
	return context.WithValue(ctx, onlyReadsKey{}, true)
}

// tellLocked notes that the client of a task gets to know its state.
func (t *task) tellLocked() {
	if t.status.final() && !t.wasTold {
		t.wasTold = true
		close(t.delivered)
	}
}

func (s *Tasks) getLocked(t *task, _ *Params) (mcp.Result, error) {
	d := s.describeLocked(t)
	d.ResultType = "complete"
	switch t.status {
	case statusCompleted:
		if d.Result = t.result; t.dropped != nil {
			d.Result = t.dropped
		}
	case statusFailed:
		d.Error = t.fault
	case statusInputRequired:
		d.InputRequests = maps.Clone(t.requests) // encoded when the lock is gone
	}
	return d, nil
}

func (s *Tasks) cancelLocked(t *task, _ *Params) (mcp.Result, error) {
	if !t.status.final() {
		t.requests = nil
		t.setLocked(statusCancelled)
		t.cancel(errCancelled)
	}
	return done(), nil
}

// updateLocked takes answers to the requests of a task, and ignores others.
func (s *Tasks) updateLocked(t *task, p *Params) (mcp.Result, error) {
	if t.status != statusInputRequired {
		return done(), nil
	}
	given := make(mcp.InputResponseMap)
	for key, raw := range p.InputResponses {
		if t.requests[key] == nil {
			continue
		}
		one, err := json.Marshal(map[string]json.RawMessage{key: raw})
		if err == nil {
			err = json.Unmarshal(one, &given)
		}
		if err != nil {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Invalid parameters: " + err.Error()}
		}
		t.responses[key] = given[key]
		delete(t.requests, key)
	}
	if len(t.requests) == 0 {
		t.setLocked(statusWorking)
		t.answered <- struct{}{}
	}
	return done(), nil
}

func unknownMethod(method string) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "Method not found: " + method}
}

// unknown returns the error for an unknown id. It says so if the id is of another process.
func (s *Tasks) unknown(id string) error {
	server, _, ok := strings.Cut(id, "-")
	text := "Task not found: " + id
	switch {
	case len(id) > maxID:
		text = "Task not found: " + truncate.Bytes(id, maxID)
	case ok && len(id) == len(s.name())+1+26 && server != s.name():
		text += ". It was another server's, or this one has been restarted since: what it came to is lost. Files and variables of its box are kept; call the tool again"
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: text}
}

// missing returns the error for a client that does not declare the extension.
func missing() error {
	var need mcp.ClientCapabilities
	need.AddExtension(Extension, nil)
	data, err := json.Marshal(mcp.MissingRequiredClientCapabilityData{RequiredCapabilities: &need})
	if err != nil {
		return err
	}
	return &jsonrpc.Error{
		Code:    mcp.CodeMissingRequiredClientCapabilities,
		Message: "Missing required client capability: extension " + Extension,
		Data:    bytes.Clone(data),
	}
}
