package box

import (
	"context"
	"errors"
	"strings"
	"time"
)

// maxChanged bounds what an Undelivered lists, in bytes.
const maxChanged = 400

// Undelivered says what calls did whose clients got no answer: the client cancelled the call, the
// server stopped, or the client was gone when the call ended. The box keeps it until an answer has it,
// also over a hibernation.
type Undelivered struct {
	At       time.Time `json:"at"`                 // when the last of them ended
	Changed  string    `json:"changed"`            // their calls of tools that may have changed something; "": none
	Finished bool      `json:"finished,omitempty"` // none was cut off: their programs ran to their end
	Stopped  bool      `json:"stopped,omitempty"`  // the stop of the server cut one off
}

// ErrStopping is the cause of the context of a call that ends because the server stops.
var ErrStopping = errors.New("the server is shutting down")

// keepUndelivered makes a later call report what the code of this one did, if the context of this
// one has ended and its client gets no result. It reports a stop of the server only for a call that
// failed: one that was complete just before is not affected.
func (b *Box) keepUndelivered(ctx context.Context, calls ToolCalls, failed error) {
	if ctx.Err() != nil {
		b.addUndelivered(calls, Undelivered{Stopped: failed != nil && errors.Is(context.Cause(ctx), ErrStopping)})
	}
}

// addUndelivered makes a later call report i and what the code of this one did, if its calls may
// have changed something or the stop of the server cut it off.
func (b *Box) addUndelivered(calls ToolCalls, i Undelivered) {
	changed := ""
	if calls != nil {
		changed = calls.Changed()
	}
	if changed == "" && !i.Stopped {
		return
	}
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	if before := b.undelivered; before != nil {
		// The latest come first: the bound cuts the end.
		changed = strings.Trim(changed+", "+before.Changed, ", ")
		i.Finished, i.Stopped = i.Finished && before.Finished, i.Stopped || before.Stopped
	}
	i.At, i.Changed = b.env.now(), clip(changed, maxChanged)
	b.undelivered = &i
}

// NoteUndelivered makes a later call report what the code of this one did, which ran to its end. The
// caller uses it if the client of the call has left before the result.
func (b *Box) NoteUndelivered(calls ToolCalls) {
	b.addUndelivered(calls, Undelivered{Finished: true})
}

// Undelivered returns what earlier calls in the box did whose clients got no answer; nil if there
// is nothing to tell, or another call is about to. Call it when the answer is made: a cancelled call
// may end only before this one's turn. If the answer is not delivered, see Settle, a later hold
// has it again.
func (h Hold) Undelivered() *Undelivered {
	if h.pin == nil {
		return nil
	}
	b := h.pin.box
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	return h.pin.claimLocked(b)
}

// Elsewhere is Undelivered for another session of the owner in memory, the one used last of those
// whose ids no answer has named. It returns the id of that session.
func (h Hold) Elsewhere() (id string, i *Undelivered) {
	if h.pin == nil {
		return "", nil
	}
	b := h.pin.box
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	var last *Box
	for _, o := range b.reg.boxes {
		if o != b && o.key.owner == b.key.owner && o.undelivered != nil && o.idUnknown && o.undeliveredBy == nil &&
			(last == nil || o.use.seq > last.use.seq) {
			last = o
		}
	}
	if last == nil {
		return "", nil
	}
	return last.key.id, h.pin.claimLocked(last)
}

// claimLocked returns the undelivered work of a box that the pin's caller is about to deliver; nil if
// there is none, or another caller is about to.
func (p *pin) claimLocked(b *Box) *Undelivered {
	if b.undelivered == nil || b.undeliveredBy != nil {
		return nil
	}
	b.undeliveredBy = p
	p.claims = append(p.claims, claim{b, b.undelivered})
	return b.undelivered
}

// A claim is undelivered work of a box that a caller is about to deliver.
type claim struct {
	box  *Box
	what *Undelivered
}

// settleClaimsLocked forgets what the pin's caller claimed if it was delivered.
func (p *pin) settleClaimsLocked(delivered bool) {
	for _, c := range p.claims {
		c.box.undeliveredBy = nil
		if delivered && c.box.undelivered == c.what { // otherwise there is more since
			c.box.undelivered = nil
		}
	}
	p.claims = nil
}
