package tools

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/codemode"
	"github.com/glovebox-dev/glovebox/internal/codemode/approval"
	"github.com/glovebox-dev/glovebox/internal/plural"
	"github.com/glovebox-dev/glovebox/internal/revision"
)

// approvable serves a call whose code may need approvals: while the code waits for one, the
// client is asked. do runs the code and returns its result. A request that has a state or input
// responses continues an earlier one, and never runs the code again.
func (c *Call) approvable(ctx context.Context, approver *approval.Approver, req *mcp.CallToolRequest, do func(context.Context) (*mcp.CallToolResult, error)) (*mcp.CallToolResult, error) {
	switch continues := req.Params.RequestState != "" || len(req.Params.InputResponses) > 0; {
	case approver == nil && continues:
		return nil, approval.ErrNotPending
	case approver == nil || c.broker == nil && !continues:
		return do(ctx)
	}
	caller := approval.Caller{Owner: string(c.Owner), Responses: req.Params.InputResponses, State: req.Params.RequestState, Task: isTask(ctx), Began: time.Now(), Size: len(req.Params.Arguments)}
	if c.progress != nil {
		caller.Attendant = c.progress
	}
	if c.holdCall != nil {
		caller.Hold = func() func() { return c.holdCall(c.Owner) }
	}
	if c.Client != nil {
		caller.Session = c.Client
	}
	switch able := CanElicit(req.ClientCapabilities()); {
	case able && revision.IsModern(req.ProtocolVersion()):
		caller.ByResult = true
	case able && req.Session != nil:
		caller.Elicit = elicitor(req.Session, c.progress)
	}
	if caller.ByResult || caller.State != "" {
		caller.Key, caller.Program, caller.Box = requestDigests(req.Params)
	}
	c.byResult = caller.ByResult
	if before, ok := approver.Expired(caller); ok {
		c.expired = expiredBefore(before)
		return do(ctx)
	}
	res, err := approver.Serve(ctx, caller, do)
	if c.behind != "" {
		if asks := approver.Recall(caller, c.behind); asks != nil {
			return asks, nil
		}
	}
	if caller.State != "" && err == nil {
		recordResult(ctx, res)
	}
	return res, err
}

// reasonExpired is the reason of an error for a request whose program has expired.
const reasonExpired = "expired"

// expiredBefore is the error of a request that repeats one whose program has expired: the user has
// to know what that did before the program does it again.
func expiredBefore(e approval.Expired) error {
	did := "It made no tool calls"
	if e.Calls > 0 {
		did = "It made " + plural.N(e.Calls, "tool call")
		switch {
		case len(e.Writes) == 0:
			did += ", none of a tool that changes something"
		default:
			did += ", and may have changed something with " + strings.Join(e.Writes, ", ")
			if e.More > 0 {
				did += " and " + plural.N(e.More, "further call")
			}
		}
	}
	return &box.Error{
		Code: box.CodeBusy, Op: "run again",
		Msg:     fmt.Sprintf("This request has run before. Its program waited for approval, which nobody gave until %s, and then went on without it. %s. This call did not run", formatTime(e.At), did),
		Hint:    "Repeat the request to run the program again, from its beginning: calls that it made would be made twice. Or change the code to do only what is missing.",
		Context: map[string]string{"reason": reasonExpired},
	}
}

// explainParked adds to the error of a call that would wait for a program which waits for approval:
// for which tools, for how long, and what the user and the model can do about it.
func (c *Call) explainParked(b *box.Box, err error) error {
	e, ok := errors.AsType[*box.Error](err)
	if !ok || e.Code != box.CodeBusy || e.Context["reason"] != box.ReasonParked {
		return err
	}
	c.behind = b.ID()
	id, stop, other := "session_id", "stop_session", "leave out session_id to run in a new session"
	if b.Info().Kind == box.KindContext {
		id, stop, other = "context_id", "stop_context", "use another context"
	}
	said := *e
	said.Msg += ". This call did not run"
	const answers = "The user answers or denies the question in the client that asked it. "
	ways := fmt.Sprintf("%s ends the %s and the program; or %s.", stop, b.Info().Kind, other)
	said.Hint = answers + ways
	if c.approver != nil {
		if w, ok := c.approver.Waiting(string(c.Owner), b.ID()); ok {
			tools := strings.Join(w.Tools, ", ")
			if w.More > 0 {
				tools += fmt.Sprintf(" and %d more", w.More)
			}
			said.Msg = fmt.Sprintf("A program in this %s waits for the user's approval of %s, for %s at most. This call did not run", b.Info().Kind, tools, atMost(w.Left))
			lost := "wait, since it cannot be asked again. Or: "
			switch {
			case w.Recallable:
				lost = fmt.Sprintf("repeat the call that started the program, with the same arguments and the %s of this %[2]s: it is asked again. Or: ", id, b.Info().Kind)
			case w.Task:
				lost = "get the task that started the program: it has the question. Or: "
			}
			said.Hint = "Without an answer, the program then goes on without the tool, and this call can be repeated. " + answers + "If the question is no longer on the screen, " + lost + ways
		}
	}
	return &said
}

// atMost returns a time for a sentence, such as "4 min 30 s".
func atMost(d time.Duration) string {
	s := int64((max(d, time.Second) + time.Second - 1) / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s%60 == 0:
		return fmt.Sprintf("%d min", s/60)
	}
	return fmt.Sprintf("%d min %d s", s/60, s%60)
}

type answerKey struct{}

// elicitor returns a function that asks a client and returns any answer that it gives. The
// session refuses an answer that does not fit the form, in the words of a validator of schemas;
// package approval asks again, and says what is missing. [KeepAnswer] must see what the session
// sends. While the question waits, p keeps the client's request alive.
func elicitor(session *mcp.ServerSession, p *progress) func(context.Context, *mcp.ElicitParams) (*mcp.ElicitResult, error) {
	return func(ctx context.Context, q *mcp.ElicitParams) (*mcp.ElicitResult, error) {
		defer p.sayUntil("waiting for the user's answer to the question about a tool call")()
		var answer *mcp.ElicitResult
		res, err := session.Elicit(context.WithValue(ctx, answerKey{}, &answer), q)
		if err != nil && answer != nil {
			return answer, nil
		}
		return res, err
	}
}

// KeepAnswer is a middleware for the requests that the server sends. It keeps the answers to
// questions about approval for the runs that asked them.
func KeepAnswer(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if keep, ok := ctx.Value(answerKey{}).(**mcp.ElicitResult); ok {
			if answer, ok := res.(*mcp.ElicitResult); ok && err == nil {
				*keep = answer
			}
		}
		return res, err
	}
}

// Within returns a context for calls of tools whose code ends with life, also while it waits
// for approval without a request.
func Within(ctx, life context.Context) context.Context { return approval.Within(ctx, life) }

type taskKey struct{}

// InTask returns a context for the calls of a task, which end with it. Its questions stay with the
// task.
func InTask(ctx context.Context) context.Context {
	return context.WithValue(Within(ctx, ctx), taskKey{}, true)
}

// isTask reports whether a task makes a call.
func isTask(ctx context.Context) bool {
	task, _ := ctx.Value(taskKey{}).(bool)
	return task
}

// CanElicit reports whether a client supports forms, with which it asks its user for approval.
func CanElicit(caps *mcp.ClientCapabilities) bool {
	return caps != nil && caps.Elicitation != nil && (caps.Elicitation.Form != nil || caps.Elicitation.URL == nil)
}

// requestDigests returns the same digests for calls of the same tool with equal arguments. For
// program the box that they name, which is returned too, need not be equal.
func requestDigests(p *mcp.CallToolParamsRaw) (request, program, box string) {
	digest := func(arguments json.RawMessage) string {
		if same, err := codemode.Canonical(arguments); err == nil {
			arguments = same
		}
		h := sha256.New()
		h.Write([]byte(p.Name))
		h.Write([]byte{0})
		h.Write(arguments)
		return hex.EncodeToString(h.Sum(nil))
	}
	request = digest(p.Arguments)
	var named map[string]json.RawMessage
	if json.Unmarshal(p.Arguments, &named) != nil {
		return request, request, ""
	}
	for _, id := range []string{"session_id", "context_id"} {
		_ = json.Unmarshal(named[id], &box) // else the call is refused
		delete(named, id)
	}
	rest, err := json.Marshal(named)
	if err != nil {
		return request, request, ""
	}
	return request, digest(rest), box
}

// recordResult is recordFields for the result of code that an earlier request began.
func recordResult(ctx context.Context, res *mcp.CallToolResult) {
	structured, _ := res.StructuredContent.(json.RawMessage)
	var named struct {
		SessionID string `json:"session_id"`
		ContextID string `json:"context_id"`
	}
	if json.Unmarshal(structured, &named) == nil {
		recordFields(ctx, named)
	}
}
