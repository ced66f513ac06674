package approval

import (
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/codemode"
)

// maxRepeats bounds how often one question is asked again because its answer lacked a decision.
// A person who forgot to choose needs one more form, or two; a client that answers without
// a person never gives a decision.
const maxRepeats = 2

// repeatLocked reports whether a question whose answer lacked a decision is asked again. If so,
// it has a new token, since an answer counts once and tasks name their questions by the token,
// and its time begins again. The calls that the answer denies stay denied in the run, unless a
// later answer allows them.
func (a *Approver) repeatLocked(q *question, decisions []Decision) bool {
	if q.repeats >= maxRepeats || !a.renewLocked(q) {
		return false
	}
	for i, d := range decisions {
		if d == Deny {
			q.run.calls[q.groups[i][0].hash] = false
		}
	}
	q.repeats++
	return true
}

// renewLocked reports whether an open question may be asked once more. If so, it has a new token,
// so that an answer to the earlier one counts no more, and its time begins again.
func (a *Approver) renewLocked(q *question) bool {
	r := q.run
	if r.questions >= r.maxQuestions() || a.closed || !q.timer.Stop() { // it has expired
		return false
	}
	r.questions++
	asked := a.byToken[q.token] == q
	delete(a.byToken, q.token)
	q.token = newToken()
	if asked {
		a.byToken[q.token] = q
	}
	q.until = time.Now().Add(a.o.Expiry)
	q.timer.Reset(a.o.Expiry)
	return true
}

// Recall asks the open question of the program in a box again, for a client that repeats the
// request which began the program after it was asked: it may have lost the question. It returns the result that
// asks, or nil if no question waits there for a client that is asked by results. The request must
// be the same, of the same owner and session, except that it names the box also if the first one
// left the choice to the server. Only an answer to this request counts from then on.
func (a *Approver) Recall(c Caller, box string) *mcp.CallToolResult {
	if !c.ByResult || c.Task || c.continues() {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, q := range a.byToken {
		if first := q.run.caller; !q.recallableLocked() || !q.waitsInLocked(box) || first.Owner != c.Owner || first.Session != c.Session || first.Program != c.Program {
			continue
		}
		if c.Began.Before(q.until.Add(-a.o.Expiry)) {
			continue // it was sent beside the one that has the question, whose answer counts
		}
		if !a.renewLocked(q) {
			return nil
		}
		q.run.key = c.Key
		again := *q.params
		again.Message = "The client has repeated its request. The program still waits for your answer to this question.\n\n" + again.Message
		return q.resultLocked(&again)
	}
	return nil
}

// recallableLocked reports whether a question waits for an answer by a request, and no request
// waits for its run. The question of a task stays with the task, whose client can read it there.
func (q *question) recallableLocked() bool {
	return q.status == statusOpen && !q.run.attended && !q.run.caller.Task && q.run.questions < q.run.maxQuestions()
}

// waitsInLocked reports whether a call of a box waits for the question.
func (q *question) waitsInLocked(box string) bool {
	return slices.ContainsFunc(q.groups, func(g []*pendingCall) bool {
		return slices.ContainsFunc(g, func(p *pendingCall) bool { return p.Box == box && !p.decided })
	})
}

// resultLocked returns the result that asks the question, with its text.
func (q *question) resultLocked(params *mcp.ElicitParams) *mcp.CallToolResult {
	return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{answerKey(q.token): params}, RequestState: q.token}
}

// repeated returns the question as it is asked again.
func (q *question) repeated(missing string) *mcp.ElicitParams {
	again := *q.params
	again.Message = "Your last answer " + missing + ". Nothing was called. Please choose for each call, or decline.\n\n" + again.Message
	return &again
}

// undecided is the error of calls for which the last answer had no decision.
func undecided(missing string) *codemode.Error {
	return &codemode.Error{Code: codemode.ApprovalRequired,
		Message: "the answer of the client to the question about the call " + missing + "; the tool was not called. That is no denial: repeat the call to ask again"}
}
