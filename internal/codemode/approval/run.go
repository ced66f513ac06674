package approval

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/codemode"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// A Caller is the client of a request that runs a program, and what it sent to continue
// an earlier one.
type Caller struct {
	Owner string // from authentication; "" is the local user
	// Began is when the request arrived; only later ones repeat it. See [Approver.Recall].
	Began   time.Time
	Session any    // identifies the session of the client, comparable; nil if it has none
	Key     string // digest of the request: a later one continues it only if it is the same
	// Program is the digest of the request but for the box that it names. See [Approver.Recall].
	Program string
	Box     string // that the request names; "" leaves the choice to the server
	// Elicit asks the client; nil if it is asked by a result, or not at all.
	Elicit func(context.Context, *mcp.ElicitParams) (*mcp.ElicitResult, error)
	// ByResult says that the client answers input-required results.
	ByResult bool
	// Size is that of the arguments of the request, in bytes: without Elicit, a program that
	// waits keeps them in memory although no request is counted for them.
	Size int
	// Hold reserves the place of a call for the time that no request waits for the run, and
	// returns what gives it back; nil reserves nothing.
	Hold func() (release func())
	// Task says that a task makes the request, and keeps its questions for the client.
	Task bool
	// Attendant is for code that works for the run while the request waits for it; see
	// [AttendantOf].
	Attendant any

	Responses mcp.InputResponseMap // of a client that answers
	State     string               // token of the question that it answers; "" without Responses begins a new run
}

// continues reports whether the request continues an earlier one. An answer that has lost its
// state begins no run: the program would run a second time.
func (c Caller) continues() bool { return c.State != "" || len(c.Responses) > 0 }

// A run is a program in progress that may need approval.
type run struct {
	approver *Approver
	caller   Caller // of the first request
	cancel   context.CancelCauseFunc
	ready    chan *question // capacity 1: the question to ask now
	done     chan runResult // capacity 1
	// attendant is that of the request which waits for the run; nil: none does.
	attendant atomic.Pointer[any]

	// Guarded by Approver.mu:

	key        string // Caller.Key of the request that has the question: the first, or a later one by Recall
	attended   bool   // a request waits for the run
	ended      bool
	release    func()          // see Caller.Hold; nil: nothing is held
	pending    []*pendingCall  // that wait for a question
	open       *question       // nil: none
	batch      *time.Timer     // until the next question; nil: none
	batchBegan time.Time       // when batch began
	questions  int             // so far
	late       bool            // the last question has expired, and the client has not come back
	allowed    map[target]bool // for the rest of the run
	calls      map[digest]bool // by their arguments: true if approved for good, false if denied in this run
	did        *Expired        // what it has done so far
}

type runResult struct {
	res   *mcp.CallToolResult
	err   error
	panic any // with the stack, as text
}

// A pendingCall is a call that waits for approval.
type pendingCall struct {
	codemode.Request
	hash     digest
	composed chan struct{} // closed when it is part of a question
	answer   chan error    // capacity 1; nil approves

	// Guarded by Approver.mu until it is decided:

	decided  bool
	decision string // for the audit log
}

func (p *pendingCall) target() target { return target{p.Owner, p.Server, p.Tool, p.Version} }

// asked reports whether the call has been part of a question.
func (p *pendingCall) asked() bool {
	select {
	case <-p.composed:
		return true
	default:
		return false
	}
}

// decideLocked decides the call.
func (p *pendingCall) decideLocked(decision string, err error) {
	p.decided, p.decision = true, decision
	p.answer <- err
}

type runKey struct{}

// AttendantOf returns [Caller.Attendant] of the request that waits for the run of a context; nil if
// none does. ok is false for a context of no run. It never blocks.
func AttendantOf(ctx context.Context) (attendant any, ok bool) {
	r, ok := ctx.Value(runKey{}).(*run)
	if !ok {
		return nil, false
	}
	if p := r.attendant.Load(); p != nil {
		return *p, true
	}
	return nil, true
}

type livesKey struct{}

// Within returns a context for [Approver.Serve] whose runs are cancelled when life ends, also
// while no request waits for them. Contexts of earlier calls of Within still count.
func Within(ctx, life context.Context) context.Context {
	if life.Done() == nil {
		return ctx
	}
	return context.WithValue(ctx, livesKey{}, append(slices.Clip(livesOf(ctx)), life))
}

func livesOf(ctx context.Context) []context.Context {
	lives, _ := ctx.Value(livesKey{}).([]context.Context)
	return lives
}

// Serve serves a request of a client that runs a program. do runs it and returns its
// result; its context must reach [Approver.Approve]. The result may be an input-required one:
// then do continues, and a later Serve with the state in Caller returns what comes next.
// do ends with ctx only while a request waits for it, and in any case when a life given to
// [Within] ends or when it is too late for its client to come back.
func (a *Approver) Serve(ctx context.Context, c Caller, do func(context.Context) (*mcp.CallToolResult, error)) (*mcp.CallToolResult, error) {
	if c.continues() {
		r, again, err := a.resume(c)
		if err != nil || again != nil {
			return again, err
		}
		return r.attend(ctx, c)
	}
	if c.Elicit == nil && !c.ByResult {
		return do(ctx)
	}
	r := &run{
		approver: a, caller: c, key: c.Key, ready: make(chan *question, 1), done: make(chan runResult, 1), attended: true,
		allowed: make(map[target]bool), calls: make(map[digest]bool), did: &Expired{},
	}
	r.attendant.Store(&c.Attendant)
	var own context.Context
	own, r.cancel = context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), runKey{}, r))
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		r.cancel(nil)
		return do(ctx)
	}
	a.runs[r] = struct{}{}
	a.mu.Unlock()
	for _, life := range livesOf(ctx) {
		stop := context.AfterFunc(life, func() { r.cancel(context.Cause(life)) })
		context.AfterFunc(own, func() { stop() })
	}
	a.running.Go(func() {
		defer r.cancel(nil)
		o := protect(own, do)
		a.mu.Lock()
		r.ended = true
		if !r.attended {
			o.res = boundLate(o.res)
		}
		r.releaseLocked()
		if !r.attended && !a.awaitedLocked(r) {
			delete(a.runs, r)
		}
		a.mu.Unlock()
		r.done <- o
	})
	return r.attend(ctx, c)
}

// holdLocked and releaseLocked reserve and release the place of a run that no request waits for.
func (r *run) holdLocked() {
	if r.caller.Hold != nil && !r.ended {
		r.release = r.caller.Hold()
	}
}

func (r *run) releaseLocked() {
	if r.release != nil {
		r.release()
		r.release = nil
	}
}

// protect calls do and catches its panic.
func protect(ctx context.Context, do func(context.Context) (*mcp.CallToolResult, error)) (o runResult) {
	defer func() {
		if p := recover(); p != nil {
			o.panic = fmt.Sprintf("%v\n%s", p, debug.Stack())
		}
	}()
	res, err := do(ctx)
	return runResult{res: res, err: err}
}

// awaitedLocked reports whether a client may still come to fetch what the run returns.
func (a *Approver) awaitedLocked(r *run) bool {
	for _, q := range a.byToken {
		if q.run == r {
			return true
		}
	}
	return false
}

// attend waits for the end of the run or for its next question.
func (r *run) attend(ctx context.Context, c Caller) (*mcp.CallToolResult, error) {
	cancelled := ctx.Done()
	for {
		select {
		case q := <-r.ready:
			if c.Elicit != nil {
				r.approver.elicit(ctx, c, q)
			} else if res := r.approver.publish(q); res != nil {
				return res, nil
			}
		case o := <-r.done:
			r.approver.forgetRun(r)
			if o.panic != nil {
				panic(o.panic)
			}
			return o.res, o.err
		case <-cancelled:
			r.cancel(context.Cause(ctx))
			cancelled = nil
		}
	}
}

func (a *Approver) forgetRun(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.runs, r)
}

// Approve asks the client that runs the program whether a call may be made. It is for
// [codemode.Options]; ctx must be derived from that of the function given to Serve.
func (a *Approver) Approve(ctx context.Context, req codemode.Request) (approved bool, err error) {
	p := &pendingCall{Request: req, composed: make(chan struct{}), answer: make(chan error, 1)}
	if p.hash, err = hashOf(req); err != nil {
		return false, err
	}
	r, _ := ctx.Value(runKey{}).(*run)
	if a.denied(r, p.hash) {
		return false, nil
	}
	always, err := a.o.Store.has(req.Owner, p.hash)
	if err != nil {
		a.o.Log.Warn("remembered approvals not read; asking again", logkey.Error, err)
	}
	if always {
		p.decision = string(AllowAlways)
		a.audit([]*pendingCall{p}, "remembered")
		return true, nil
	}
	a.mu.Lock()
	a.enqueueLocked(r, p)
	decided := p.decided
	a.mu.Unlock()
	if decided {
		// Refusals are no decisions, and a program could fill the disk with them.
		err := <-p.answer
		if err == nil {
			a.audit([]*pendingCall{p}, "run")
		}
		return asApproval(err)
	}
	select {
	case <-p.composed:
	case err := <-p.answer:
		return asApproval(err)
	case <-ctx.Done():
		return asApproval(a.withdraw(r, p))
	}
	unpark := a.o.Park(ctx)
	defer unpark()
	select {
	case err := <-p.answer:
		return asApproval(err)
	case <-ctx.Done():
		return asApproval(a.withdraw(r, p))
	}
}

var errDenied = errors.New("denied")

// asApproval returns what Approve returns for an answer.
func asApproval(err error) (approved bool, _ error) {
	if errors.Is(err, errDenied) {
		return false, nil
	}
	return err == nil, err
}

// enqueueLocked has a call wait for the next question, or decides it at once.
func (a *Approver) enqueueLocked(r *run, p *pendingCall) {
	refuse := func(code codemode.Code, format string, args ...any) {
		p.decideLocked(refused, &codemode.Error{Code: code, Message: fmt.Sprintf(format, args...) + "; the tool was not called. " + a.o.Remedy(p.Server, p.Tool)})
	}
	switch {
	case a.closed:
		refuse(codemode.ApprovalExpired, "the server is shutting down")
	case r == nil:
		refuse(codemode.ApprovalRequired, "the tool needs approval, and this client cannot be asked: it does not declare elicitation")
	case r.caller.Owner != p.Owner:
		refuse(codemode.ApprovalRequired, "the tool needs approval of another user")
	case r.decideKnownLocked(p):
	case r.late:
		refuse(codemode.ApprovalExpired, "the client did not answer the last question about approval")
	case r.questions >= r.maxQuestions():
		refuse(codemode.ApprovalRequired, "the run has asked for approval %d times, which is the limit: continue in another run", r.questions)
	case r.caller.Elicit == nil && r.caller.Size > maxSize:
		refuse(codemode.ApprovalRequired, "the request that runs the program takes %d KiB, and the server keeps at most %d KiB while the user is asked: write long code or data to a file in an earlier call", (r.caller.Size+1023)>>10, maxSize>>10)
	case len(r.pending) == 0 && r.open == nil && !a.roomLocked(r):
		refuse(codemode.ApprovalRequired, "too many programs wait for approval: the limits are %d of a user and %d in all", a.o.PerOwner, a.o.All)
	default:
		r.pending = append(r.pending, p)
		r.startBatchLocked()
	}
}

// denied reports whether the person has denied a call in this run. r is nil for a call outside
// of a run.
func (a *Approver) denied(r *run, hash digest) bool {
	if r == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	approved, known := r.calls[hash]
	return known && !approved
}

// decideKnownLocked decides a call by an earlier decision of the run. A denial of the call takes
// precedence over an approval of its tool.
func (r *run) decideKnownLocked(p *pendingCall) bool {
	approved, known := r.calls[p.hash]
	switch {
	case known && !approved:
		p.decideLocked(string(Deny), errDenied)
	case known:
		p.decideLocked(string(AllowAlways), nil)
	case r.allowed[p.target()]:
		p.decideLocked(string(AllowRun), nil)
	default:
		return false
	}
	return true
}

func (r *run) maxQuestions() int {
	if r.caller.Elicit != nil {
		return maxElicitations
	}
	return maxRounds
}

// roomLocked reports whether one more run may wait for approval. If all places are taken, it
// makes room by dropping the oldest result that is kept for a late client, of the owner with the
// most places, unless another owner would have fewer places than this one then. A program that
// has not ended keeps its place.
func (a *Approver) roomLocked(r *run) bool {
	owner := r.caller.Owner
	for {
		all, places := 0, make(map[string]int)
		for o := range a.runs {
			if o != r && (len(o.pending) > 0 || o.open != nil || a.awaitedLocked(o)) {
				all++
				places[o.caller.Owner]++
			}
		}
		own := places[owner]
		if own < a.o.PerOwner && all < a.o.All {
			return true
		}
		var late *question
		most := 0
		for _, q := range a.byToken {
			other := q.run.caller.Owner
			taken := places[other]
			if q.status == statusOpen || !q.run.ended || other != owner && (own >= a.o.PerOwner || taken <= own) {
				continue
			}
			if late == nil || taken > most || taken == most && q.asked.Before(late.asked) {
				late, most = q, taken
			}
		}
		if late == nil {
			return false
		}
		a.forgetLocked(late)
	}
}
