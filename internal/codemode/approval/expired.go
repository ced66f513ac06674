package approval

import (
	"context"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/internal/codemode"
)

const (
	// maxExpired bounds the runs whose expiry is remembered, and expiredFor the time.
	maxExpired = 1000
	expiredFor = time.Hour
	// maxWritten bounds the tools in an Expired.
	maxWritten = 10
)

// An Expired says what a run did that asked for approval and got no answer in time.
type Expired struct {
	At    time.Time // when its question expired
	Calls int       // of tools, that it has begun
	// Writes are the tools among them that may have changed something: SERVER.TOOL, in the order of
	// their first calls and safe to show, at most maxWritten. More tools are left out.
	Writes []string
	More   int
}

// A requestID is what requests have in common that may begin the same run.
type requestID struct {
	owner   string
	session any
	key     string
}

func (c Caller) id() requestID { return requestID{c.Owner, c.Session, c.Key} }

// Called records that the run of a context has begun a call. It is for [codemode.Options].
func (a *Approver) Called(ctx context.Context, t codemode.Tool) {
	r, ok := ctx.Value(runKey{}).(*run)
	if !ok {
		return
	}
	server, _ := serverName.show(t.Server)
	tool, _ := toolName.show(t.Name)
	name := server + "." + tool
	a.mu.Lock()
	defer a.mu.Unlock()
	r.did.Calls++
	switch {
	case t.Annotations != nil && t.Annotations.ReadOnlyHint, slices.Contains(r.did.Writes, name):
	case len(r.did.Writes) < maxWritten:
		r.did.Writes = append(r.did.Writes, name)
	default:
		r.did.More++
	}
}

// rememberLocked remembers that the question of a run has expired while no request waited for the
// run. A task keeps the result of its run, and other clients are still waiting.
func (a *Approver) rememberLocked(r *run) {
	if r.caller.ByResult && !r.caller.Task && !r.attended {
		r.did.At = time.Now()
		a.expired.Add(r.caller.id(), r.did)
	}
}

// cameBackLocked forgets that a run has expired: its client has come back for the result.
func (a *Approver) cameBackLocked(r *run) {
	if did, ok := a.expired.Peek(r.caller.id()); ok && did == r.did {
		a.expired.Remove(r.caller.id())
	}
}

// Expired reports whether a request, which answers no question, repeats one whose run has expired
// within the last hour, and whose result no client has fetched. It says so once: the client may
// repeat the request to run the program again.
func (a *Approver) Expired(c Caller) (e Expired, ok bool) {
	if !c.ByResult || c.Task || c.continues() {
		return Expired{}, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	did, ok := a.expired.Peek(c.id())
	if !ok {
		return Expired{}, false
	}
	a.expired.Remove(c.id())
	e = *did
	e.Writes = slices.Clone(did.Writes) // the run may go on
	return e, time.Since(e.At) < expiredFor
}
