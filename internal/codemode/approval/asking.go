package approval

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/codemode"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// startBatchLocked has a question made of the calls that wait: once no further call has come for
// a while, or at once if there are as many as a question asks about. The host cannot see that a
// program makes no more calls until it has an answer: another thread of it may be about to.
func (r *run) startBatchLocked() {
	if r.open != nil || len(r.pending) == 0 {
		return
	}
	wait := batchWindow
	switch {
	case r.groupsLocked() >= maxGroups:
		wait = 0
	case r.batch != nil:
		wait = min(wait, time.Until(r.batchBegan.Add(maxBatch)))
	}
	switch {
	case r.batch == nil:
		r.batchBegan = time.Now()
		r.batch = time.AfterFunc(wait, func() { r.approver.compose(r) })
	case r.batch.Stop(): // otherwise it is composing
		r.batch.Reset(wait)
	}
}

// groupsLocked returns the number of different calls that wait for the next question, at most
// maxGroups.
func (r *run) groupsLocked() int {
	different := make(map[digest]bool, maxGroups)
	for _, p := range r.pending {
		if different[p.hash] = true; len(different) == maxGroups {
			break
		}
	}
	return len(different)
}

// compose makes a question of the calls that wait and hands it to the request.
func (a *Approver) compose(r *run) {
	a.mu.Lock()
	q, seen := a.groupLocked(r)
	a.mu.Unlock()
	if q == nil {
		return
	}
	a.render(q, seen) // long arguments take time: other owners do not wait for it
	a.mu.Lock()
	defer a.mu.Unlock()
	if q.status != statusOpen {
		return
	}
	select {
	case <-r.ready: // a question that was withdrawn before it was asked
	default:
	}
	r.ready <- q
}

// groupLocked makes a question of the calls that wait, without its text, and returns what the
// text says about other calls; nil if there is nothing to ask.
func (a *Approver) groupLocked(r *run) (*question, background) {
	r.batch = nil
	if r.open != nil || len(r.pending) == 0 || a.closed {
		return nil, background{}
	}
	q := &question{run: r, token: newToken(), asked: time.Now()}
	q.until = q.asked.Add(a.o.Expiry)
	q.ctx, q.cancel = context.WithCancelCause(context.Background())
	rest := r.pending[:0:0]
	for _, p := range r.pending {
		i := slices.IndexFunc(q.groups, func(g []*pendingCall) bool { return g[0].hash == p.hash })
		switch {
		case i >= 0:
			q.groups[i] = append(q.groups[i], p)
		case len(q.groups) < maxGroups:
			q.groups = append(q.groups, []*pendingCall{p})
		default:
			rest = append(rest, p)
			continue
		}
		close(p.composed)
	}
	r.pending, r.open = rest, q
	r.questions++
	q.timer = time.AfterFunc(a.o.Expiry, func() { a.expire(q) })
	return q, a.backgroundLocked(q)
}

// publish returns the result that asks the client, which ends its request; nil if the
// question is no longer open.
func (a *Approver) publish(q *question) *mcp.CallToolResult {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q.status != statusOpen {
		return nil
	}
	a.byToken[q.token] = q
	q.run.attended = false
	q.run.attendant.Store(nil)
	q.run.holdLocked()
	return q.resultLocked(q.params)
}

// ErrNotPending is the error for a state that no program waits with.
var ErrNotPending = &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams,
	Message: "Invalid parameters: no program waits for this answer: it was given already, came too late, was for a question that has been asked again since, or belongs to another request, user or session. If it was given already, the program has gone on with it, and may have called tools. A call without requestState and inputResponses runs the program again, from its beginning"}

// resume gives the answer of a client to its question and returns the run. An answer to a
// question that has expired has no effect but to wait for the run. For an answer that lacks a
// decision it returns the result that asks again, while the program goes on waiting.
func (a *Approver) resume(c Caller) (r *run, again *mcp.CallToolResult, err error) {
	if !validToken(c.State) {
		return nil, nil, ErrNotPending
	}
	a.mu.Lock()
	q := a.byToken[c.State]
	if q == nil || q.run.caller.Owner != c.Owner || q.run.caller.Session != c.Session || q.run.key != c.Key {
		a.mu.Unlock()
		return nil, nil, ErrNotPending
	}
	r = q.run
	var decisions []Decision
	missing := ""
	open := q.status == statusOpen
	if open {
		if decisions, missing = parseResponses(c.Responses, q.token, q.choices); missing != "" && a.repeatLocked(q, decisions) {
			again = q.resultLocked(q.repeated(missing))
			a.mu.Unlock()
			return nil, again, nil
		}
		q.closeLocked(statusAnswered)
	}
	q.timer.Stop()
	delete(a.byToken, q.token)
	r.attended, r.late = true, false
	a.forgetExpiredLocked(r.did) // its client has come back for the result
	r.attendant.Store(&c.Attendant)
	r.releaseLocked()
	a.mu.Unlock()
	if open {
		a.apply(q, decisions, missing, "input_required")
	}
	return r, nil, nil
}

// elicit asks the client and waits for its answer, or until the question is closed. It repeats a
// question whose answer lacks a decision.
func (a *Approver) elicit(ctx context.Context, c Caller, q *question) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(q.ctx, func() { cancel(context.Cause(q.ctx)) })
	defer stop()
	params := q.params
	for {
		res, err := c.Elicit(ctx, params)
		var decisions []Decision
		missing := ""
		if err == nil {
			decisions, missing = parseAnswer(res, q.choices)
		}
		a.mu.Lock()
		if q.status != statusOpen || ctx.Err() != nil { // the calls end with ctx
			a.mu.Unlock()
			return
		}
		if missing != "" && a.repeatLocked(q, decisions) {
			a.mu.Unlock()
			params = q.repeated(missing)
			continue
		}
		q.timer.Stop()
		q.closeLocked(statusAnswered)
		if err == nil {
			a.mu.Unlock()
			a.apply(q, decisions, missing, "elicitation")
			return
		}
		decided := q.decideLocked(refused, &codemode.Error{Code: codemode.ApprovalRequired,
			Message: "the client failed to ask its user about the call; the tool was not called. That is no denial: repeat the call to ask again. If that fails as well, this client cannot ask. " + a.remedy(q) + " The client reported: " + brief(err.Error())})
		q.run.startBatchLocked()
		a.mu.Unlock()
		a.audit(decided, "elicitation")
		return
	}
}

// remedy says how the user allows the tools of a question without being asked.
func (a *Approver) remedy(q *question) string {
	var all []string
	for _, g := range q.groups {
		if one := a.o.Remedy(g[0].Server, g[0].Tool); !slices.Contains(all, one) {
			all = append(all, one)
		}
	}
	return strings.Join(all, " ")
}

// errDismissed is the error of calls whose question the person closed without a decision. That
// may have been a slip, and denies nothing.
var errDismissed = &codemode.Error{Code: codemode.ApprovalRequired,
	Message: "the user closed the question about the call without an answer; the tool was not called. That is no denial: repeat the call to ask again"}

// apply carries out the decisions about the calls of a question. missing is what the answer
// lacked for those that it does not decide; "" if the person dismissed the question.
func (a *Approver) apply(q *question, decisions []Decision, missing, via string) {
	for i, g := range q.groups {
		if decisions[i] != AllowAlways {
			continue
		}
		// The person's answer is not lost with the request that brought it.
		if err := a.o.Store.add(context.Background(), g[0].Owner, g[0].Server, g[0].Tool, g[0].hash); err != nil {
			a.o.Log.Error("approval not remembered", logkey.Error, err)
		}
	}
	approved := make([]map[string]digest, len(q.groups))
	for i, g := range q.groups {
		if decisions[i] != Deny && decisions[i] != dismissed {
			approved[i] = digests(g[0].Arguments)
		}
	}
	r := q.run
	a.mu.Lock()
	var decided []*pendingCall
	for i, g := range q.groups {
		var err error
		first := g[0]
		if ok, known := r.calls[first.hash]; known && !ok && decisions[i] == dismissed {
			decisions[i] = Deny // by an earlier answer to the same question
		}
		switch decisions[i] {
		case AllowOnce:
			delete(r.calls, first.hash)
		case AllowRun:
			delete(r.calls, first.hash)
			r.allowed[first.target()] = true
		case AllowAlways:
			r.calls[first.hash] = true
		case Deny:
			r.calls[first.hash] = false
			err = errDenied
		case dismissed:
			err = errDismissed
			if missing != "" {
				err = undecided(missing)
			}
		}
		if err == nil {
			a.lastOfLocked(g[0].Owner).Add(g[0].target(), approved[i])
		}
		for _, p := range g {
			if !p.decided {
				p.decideLocked(string(decisions[i]), err)
				decided = append(decided, p)
			}
		}
	}
	var known []*pendingCall
	r.pending = slices.DeleteFunc(r.pending, func(p *pendingCall) bool {
		if !r.decideKnownLocked(p) {
			return false
		}
		known = append(known, p)
		return true
	})
	r.startBatchLocked()
	a.mu.Unlock()
	a.audit(decided, via)
	a.audit(known, "run")
}

// expire refuses the calls of a question that the user has not answered, and those that wait
// behind it.
func (a *Approver) expire(q *question) {
	a.mu.Lock()
	if q.status != statusOpen {
		a.mu.Unlock()
		return
	}
	decided := q.run.refuseLocked(&codemode.Error{Code: codemode.ApprovalExpired,
		Message: fmt.Sprintf("the user did not answer the question about the call within %v; the tool was not called", a.o.Expiry)})
	a.rememberLocked(q.run, decided)
	a.mu.Unlock()
	a.audit(decided, expired)
}

// refuseLocked closes the open question of a run and refuses all calls that wait.
func (r *run) refuseLocked(err error) (decided []*pendingCall) {
	if q := r.open; q != nil {
		r.late = true
		decided = q.decideLocked(expired, err)
		q.closeLocked(statusExpired)
		r.approver.keepLocked(q)
	}
	for _, p := range r.pending {
		p.decideLocked(expired, err)
		decided = append(decided, p)
	}
	r.pending = nil
	return decided
}

// keepLocked lets a late client fetch the result of the run of a closed question for a
// while.
func (a *Approver) keepLocked(q *question) {
	q.timer.Stop()
	if a.byToken[q.token] != q {
		return
	}
	q.timer = time.AfterFunc(a.o.Expiry, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.byToken[q.token] == q {
			a.forgetLocked(q)
		}
	})
}

// forgetLocked forgets a closed question, and cancels its run: nobody can fetch the result
// any more.
func (a *Approver) forgetLocked(q *question) {
	q.timer.Stop()
	delete(a.byToken, q.token)
	switch r := q.run; {
	case r.ended:
		delete(a.runs, r)
	case !r.attended:
		r.cancel(errLate)
	}
}

// withdraw takes back a call that has ended while it waited.
func (a *Approver) withdraw(r *run, p *pendingCall) error {
	a.mu.Lock()
	if p.decided {
		a.mu.Unlock()
		return <-p.answer
	}
	p.decided, p.decision = true, withdrawn
	r.pending = slices.DeleteFunc(r.pending, func(o *pendingCall) bool { return o == p })
	if q := r.open; q != nil && q.decidedLocked() {
		q.closeLocked(statusExpired)
		a.keepLocked(q)
		r.startBatchLocked()
	}
	a.mu.Unlock()
	a.audit([]*pendingCall{p}, "end of the call")
	return &codemode.Error{Code: codemode.Interrupted, Message: "the call ended while it waited for approval; the tool was not called"}
}
