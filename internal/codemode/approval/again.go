package approval

import (
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
	r := q.run
	if q.repeats >= maxRepeats || r.questions >= r.maxQuestions() || a.closed || !q.timer.Stop() { // it has expired
		return false
	}
	for i, d := range decisions {
		if d == Deny {
			r.calls[q.groups[i][0].hash] = false
		}
	}
	q.repeats++
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

// resultLocked returns the result that asks the question, again if an answer lacked a decision.
func (q *question) resultLocked(missing string) *mcp.CallToolResult {
	params := q.params
	if missing != "" {
		params = q.repeated(missing)
	}
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
