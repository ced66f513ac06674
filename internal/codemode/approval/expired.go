package approval

import (
	"context"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/internal/codemode"
)

const (
	// maxExpired bounds the requests whose expiry is remembered, up to three for a run, of all owners
	// together, and expiredFor the time.
	maxExpired = 3000
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

	requests []requestID // that a repetition is recognized by
}

// A requestID is what requests have in common that may begin the same run.
type requestID struct {
	owner   string
	session any
	key     string
}

func (c Caller) id(key string) requestID { return requestID{c.Owner, c.Session, key} }

// programIn identifies requests that run the same program in a box which they name.
func (c Caller) programIn(box string) requestID { return c.id(c.Program + " in " + box) }

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

// rememberLocked remembers that the question of a run has expired, with the calls that it had
// asked about, while no request waited for the run. A task keeps the result of its run, and other
// clients are still waiting.
func (a *Approver) rememberLocked(r *run, calls []*pendingCall) {
	c := r.caller
	if !c.ByResult || c.Task || r.attended {
		return
	}
	r.did.At = time.Now()
	// A repetition may name the box that the server made for the first request, as for Recall.
	r.did.requests = []requestID{c.id(c.Key), c.id(r.key)}
	if len(calls) > 0 {
		r.did.requests = append(r.did.requests, c.programIn(calls[0].Box))
	}
	for _, id := range r.did.requests {
		a.expired.Add(id, r.did)
	}
}

// forgetExpiredLocked forgets that a run has expired.
func (a *Approver) forgetExpiredLocked(did *Expired) {
	for _, id := range did.requests {
		if now, ok := a.expired.Peek(id); ok && now == did {
			a.expired.Remove(id)
		}
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
	did, ok := a.expired.Peek(c.id(c.Key))
	if !ok && c.Box != "" {
		did, ok = a.expired.Peek(c.programIn(c.Box))
	}
	if !ok {
		return Expired{}, false
	}
	a.forgetExpiredLocked(did)
	e = *did
	e.Writes = slices.Clone(did.Writes) // the run may go on
	return e, time.Since(e.At) < expiredFor
}
