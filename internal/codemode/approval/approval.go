// Package approval asks a person about the calls of programs in boxes that need approval.
//
// An [Approver] serves the tool calls of clients that run programs. While such a program waits
// for approval it is parked, and its client is asked: by an elicitation or, if the client
// makes modern requests, by an input-required result, which the client answers with
// another request. Calls that wait at the same time are one question.
//
// An answer counts for the question that it was given to: the owner, the run, the server,
// the tool and the SHA-256 of the arguments are bound to it, and each question takes one
// answer. A question without an answer expires. Everything that is undecided when the
// server ends is refused.
//
// Where to look: Approve in run.go holds a call until its answer (codemode.Broker decides which
// calls need one), approval.go has the options and the life of an Approver, asking.go asks the
// client, question.go and render.go make the question, answer.go and again.go read the
// answer and ask again, waiting.go tells other requests what waits,
// expired.go tells a repeated request what the first one did, store.go remembers what is always approved.
package approval

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/glovebox-dev/glovebox/internal/codemode"
	"github.com/glovebox-dev/glovebox/internal/fairlru"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// batchWindow is how long a call that needs approval waits for parallel ones: a person does
	// not notice it. Each further call begins it again, until maxBatch after the first.
	batchWindow, maxBatch = 100 * time.Millisecond, time.Second
	// maxRounds bounds the questions of one run to a client that answers by repeating its
	// request: SDKs give up after ten requests.
	maxRounds = 8
	// maxElicitations bounds the questions of one run to other clients.
	maxElicitations = 20
	// maxSize bounds what a program that waits without a request keeps of the one that began
	// it, in bytes: with the most programs that may wait, 100 MiB in all.
	maxSize = 1 << 20
	// lastOwners and lastKept bound the owners, and the tools of each, whose last approved
	// call is remembered.
	lastOwners, lastKept = 1000, 100
)

// Options configures an Approver.
type Options struct {
	// Store remembers what is always approved; nil forgets it with the run.
	Store *Store
	// Expiry is how long a question waits for its answer, and then again how long the
	// result of its run waits for a client that is late; 0 means 5 minutes.
	Expiry time.Duration
	// PerOwner and All bound the runs that wait for approval, of one owner and of all;
	// 0 means 10 and 100.
	PerOwner, All int
	// Park parks the run whose call has the context; nil does not.
	Park func(ctx context.Context) (unpark func())
	// Remedy says how the user allows a tool to programs, in a sentence; nil says it in
	// general terms.
	Remedy func(server, tool string) string
	Audit  *slog.Logger // gets a line for each decision; nil discards
	Log    *slog.Logger // nil discards
}

// An Approver asks for approvals. Its methods may be called concurrently.
type Approver struct {
	o Options

	running sync.WaitGroup // goroutines of runs

	mu      sync.Mutex
	closed  bool                                      // guarded by mu
	runs    map[*run]struct{}                         // guarded by mu: that have not ended, or whose result is kept
	byToken map[string]*question                      // guarded by mu: that an answer may come for
	last    *lru.Cache[string, *lastCalls]            // guarded by mu: by owner
	expired *fairlru.LRU[string, requestID, *Expired] // guarded by mu: runs whose client has not come back
}

// lastCalls has the digest of each argument of the last approved call of a tool.
type lastCalls = lru.Cache[target, map[string]digest]

// lastOfLocked returns what is remembered of an owner.
func (a *Approver) lastOfLocked(owner string) *lastCalls {
	if calls, ok := a.last.Get(owner); ok {
		return calls
	}
	calls := newCache[target, map[string]digest](lastKept)
	a.last.Add(owner, calls)
	return calls
}

func newCache[K comparable, V any](size int) *lru.Cache[K, V] {
	c, err := lru.New[K, V](size)
	if err != nil {
		panic(err) // of a positive size: cannot fail
	}
	return c
}

// target is a version of a tool of a server on behalf of an owner.
type target struct{ owner, server, tool, version string }

// digest is a SHA-256.
type digest [sha256.Size]byte

func (d digest) String() string { return hex.EncodeToString(d[:]) }

// New returns an Approver.
func New(o Options) *Approver {
	o.Expiry, o.PerOwner, o.All = cmp.Or(o.Expiry, 5*time.Minute), cmp.Or(o.PerOwner, 10), cmp.Or(o.All, 100)
	if o.Park == nil {
		o.Park = func(context.Context) func() { return func() {} }
	}
	if o.Remedy == nil {
		o.Remedy = func(server, tool string) string {
			return fmt.Sprintf("The user of Glovebox can allow it to programs by a rule for %s.%s.", server, tool)
		}
	}
	o.Audit = cmp.Or(o.Audit, slog.New(slog.DiscardHandler))
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Approver{o: o, runs: make(map[*run]struct{}), byToken: make(map[string]*question), last: newCache[string, *lastCalls](lastOwners), expired: fairlru.New[string, requestID, *Expired](maxExpired, func(id requestID) string { return id.owner })}
}

var (
	errClosing = errors.New("the server is shutting down")
	errLeft    = errors.New("the client has left")
	errLate    = errors.New("the client did not answer the question about approval and did not come back")
)

// Stop refuses what waits for approval and all later requests, and cancels the runs whose
// client is not waiting for them. It does not wait.
func (a *Approver) Stop() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.end(func(*run) bool { return true }, "shutdown", errClosing)
}

// Leave is Stop for the runs of one session, whose client cannot answer any more.
func (a *Approver) Leave(session any) {
	a.end(func(r *run) bool { return r.caller.Session == session }, "end of the session", errLeft)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range a.expired.Keys() {
		if id.session == session {
			a.expired.Remove(id)
		}
	}
}

// end refuses what waits for approval in the runs that match, and cancels those whose
// client is not waiting for them.
func (a *Approver) end(match func(*run) bool, via string, cause error) {
	a.mu.Lock()
	var refused []*pendingCall
	for r := range a.runs {
		if !match(r) {
			continue
		}
		r.late = true
		refused = append(refused, r.refuseLocked(&codemode.Error{Code: codemode.ApprovalExpired, Message: cause.Error() + "; the tool was not called"})...)
		if !r.attended {
			r.cancel(cause)
		}
	}
	for _, q := range a.byToken {
		if match(q.run) {
			a.forgetLocked(q)
		}
	}
	a.mu.Unlock()
	a.audit(refused, via)
}

// Close is Stop, and waits for the runs that no client waits for until ctx ends.
func (a *Approver) Close(ctx context.Context) error {
	a.Stop()
	done := make(chan struct{})
	go func() { // ends with the runs, which the caller's own end outlasts in the worst case
		defer close(done)
		a.running.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for programs that need approval: %w", context.Cause(ctx))
	}
}

// hashOf returns the digest of a call: of the server, the tool, their definitions and the
// arguments, which are canonical.
func hashOf(r codemode.Request) (digest, error) {
	b, err := json.Marshal([]any{r.Server, r.Tool, r.Version, r.Arguments})
	if err != nil {
		return digest{}, fmt.Errorf("encode call: %w", err)
	}
	return sha256.Sum256(b), nil
}

// A Decision is what a person decides on a call.
type Decision string

// The closed set of decisions.
const (
	AllowOnce   Decision = "once"   // this call
	AllowRun    Decision = "run"    // the tool, for the rest of the run, except calls that were denied in it
	AllowAlways Decision = "always" // the same call, also later
	Deny        Decision = "deny"
)

// Decisions in the audit log besides those of a person.
const (
	expired   = "expired"
	withdrawn = "withdrawn" // the call ended before the answer
	dismissed = "dismissed" // the person closed the question without a decision
	refused   = "refused"   // nobody could be asked
)

// audit logs how calls were decided. via is how the decision was made. A call that was not
// approved and in no question has no line: a program could fill the log with calls that wait
// behind a question, and with repetitions of one that the person denies.
func (a *Approver) audit(all []*pendingCall, via string) {
	for _, p := range all {
		if !p.asked() && (p.decision == string(Deny) || p.decision == expired || p.decision == withdrawn) {
			continue
		}
		a.o.Audit.Info("approval", logkey.Who, cmp.Or(p.Owner, "local"), logkey.Box, p.Box, logkey.Server, p.Server, logkey.Tool, p.Tool,
			logkey.SHA256, p.hash.String(), logkey.Decision, p.decision, logkey.Via, via)
	}
}
