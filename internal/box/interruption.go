package box

import "time"

// maxChanged bounds what an Interruption lists, in bytes.
const maxChanged = 400

// An Interruption says what calls did that were cut off, as their clients cancelled them or were
// gone, or the server stopped. The box keeps it until an answer has it, also over a hibernation.
type Interruption struct {
	At      time.Time `json:"at"`      // when the last of them ended
	Changed string    `json:"changed"` // their calls of tools that may have changed something
}

// noteInterruption has a later call report what the code of this one did, if its calls may have
// changed something.
func (b *Box) noteInterruption(calls Calls) {
	if calls == nil {
		return
	}
	changed := calls.Changed()
	if changed == "" {
		return
	}
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	if before := b.interruption; before != nil {
		changed += ", " + before.Changed // the latest come first: the bound cuts the end
	}
	b.interruption = &Interruption{At: b.env.now(), Changed: clip(changed, maxChanged)}
}

// Interruption returns what earlier calls in the box did that were cut off; nil if there is
// nothing to tell, or another call is about to. Call it when the answer is made: a cancelled call
// may end only before this one's turn. If the answer is not delivered, see Settle, a later hold
// has it again.
func (h Hold) Interruption() *Interruption {
	if h.pin == nil {
		return nil
	}
	b := h.pin.s
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	if b.interruption == nil || b.interruptionBy != nil {
		return nil
	}
	b.interruptionBy, h.pin.interruption = h.pin, b.interruption
	return b.interruption
}

// settleInterruptionLocked forgets what Interruption returned if it was delivered.
func (h Hold) settleInterruptionLocked(delivered bool) {
	b := h.pin.s
	if b.interruptionBy != h.pin {
		return
	}
	b.interruptionBy = nil
	if delivered && b.interruption == h.pin.interruption { // otherwise there is more since
		b.interruption = nil
	}
}
