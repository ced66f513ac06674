package box

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/plainjson"
)

// report says how a box came into memory, and what was lost before. It stays with the box
// until a call has delivered it: if the box is hibernated earlier, its record keeps the
// losses in it. A report that a box has is not changed but replaced.
type report struct {
	Woken *Woken     `json:"woken,omitempty"`
	Lost  *Tombstone `json:"lost,omitempty"`
	// Undelivered is here for the record only: a box in memory has its own.
	Undelivered *Undelivered `json:"interruption,omitempty"`

	created bool
	held    bool // a Hold has it
}

// reportLocked returns the report of a box whose start begins.
func (m *Manager) reportLocked(b *Box) *report {
	if b.origin.adopted != nil {
		return &report{} // nothing is lost
	}
	if earlier := b.origin.report; earlier != nil {
		b.undelivered = earlier.Undelivered
	}
	t := m.reg.tombstones.get(b.key)
	if b.state != stateWaking {
		return &report{created: true, Lost: t}
	}
	w := &Woken{Saved: b.origin.written, Behind: b.origin.stale, InCall: b.origin.inCall}
	// A tombstone from before that time is of an earlier box.
	if w.Behind && t != nil && t.At.After(w.Saved) {
		w.Why = t
	}
	return (&report{Woken: w}).including(b.origin.report)
}

// including adds the losses of an earlier report that was not delivered, if there is one,
// to the report of a wake. Of two states that the box went back to, the older one counts.
func (r *report) including(earlier *report) *report {
	if earlier == nil {
		return r
	}
	r.Lost = earlier.Lost
	if e := earlier.Woken; e != nil {
		if e.Behind && (!r.Woken.Behind || e.Saved.Before(r.Woken.Saved)) {
			r.Woken.Saved, r.Woken.Behind, r.Woken.InCall, r.Woken.Why = e.Saved, true, e.InCall, e.Why
		}
		r.Woken.Rescued = e.Rescued
	}
	return r
}

// takeReport moves the report of the box into a hold, unless another one has it.
func (b *Box) takeReport(hold Hold) Hold {
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	if b.report == nil || b.report.held {
		return hold
	}
	r := *b.report
	r.held = true
	b.report, hold.report = &r, &r
	hold.Created, hold.Woken, hold.Lost = r.created, r.Woken, r.Lost
	return hold
}

// Settle says whether the caller's answer delivers what the hold reports. If it does not,
// a later hold of the box has the report again. Only the first call counts, and Release
// is one.
func (h Hold) Settle(delivered bool) {
	if h.pin == nil {
		return
	}
	b := h.pin.box
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	if h.pin.settled {
		return
	}
	h.pin.settled = true
	h.pin.settleClaimsLocked(delivered)
	b.idUnknown = b.idUnknown && !delivered
	switch {
	case h.report == nil:
	case b.report != h.report: // settled
	case delivered:
		b.report = nil
	default:
		r := *h.report
		r.held = false
		r.created = r.created && !b.executed.Load() // otherwise it has what that code left
		b.report = &r
	}
}

// unreportedLocked returns the losses that no call has delivered and what interrupted calls
// did, for the record of the box; "" if there are none.
func (b *Box) unreportedLocked() string {
	var r report
	if b.report != nil {
		r = *b.report
	}
	r.Undelivered = b.undelivered
	if r.Lost == nil && r.Undelivered == nil && (r.Woken == nil || !r.Woken.Behind && r.Woken.Rescued == nil) {
		return ""
	}
	if text := r.encode(); len(text) <= snapshot.MaxUnreported {
		return text
	}
	return r.brief().encode()
}

// encode returns the losses as JSON, without escapes for HTML: those would be escaped
// again in the record.
func (r *report) encode() string {
	b, _ := plainjson.Marshal(r) // cannot fail: strings, numbers and valid times only
	return string(b)
}

// brief returns the report with short texts.
func (r *report) brief() *report {
	short := func(t *Tombstone) *Tombstone {
		if t == nil {
			return nil
		}
		return &Tombstone{ID: t.ID, Kind: t.Kind, Reason: t.Reason, Detail: clip(t.Detail, 200), At: t.At}
	}
	s := &report{Lost: short(r.Lost), Undelivered: r.Undelivered}
	if w := r.Woken; w != nil {
		s.Woken = &Woken{Saved: w.Saved, Behind: w.Behind, InCall: w.InCall, Why: short(w.Why)}
		if w.Rescued != nil {
			c := *w.Rescued
			c.Why, c.NoFiles, c.Examples = clip(c.Why, 200), clip(c.NoFiles, 200), nil
			c.Remedy = clip(c.Remedy, 200)
			s.Woken.Rescued = &c
		}
	}
	return s
}

// decodeReport decodes what unreportedLocked returned; nil for "".
func decodeReport(text string) (*report, error) {
	if text == "" {
		return nil, nil
	}
	r := new(report)
	if err := json.Unmarshal([]byte(text), r); err != nil {
		return nil, fmt.Errorf("decode the losses of a box: %w", err)
	}
	return r, nil
}

// Woken says that a call woke a hibernated box.
type Woken struct {
	Saved time.Time `json:"saved"` // when it was written to disk
	// Behind says that the box had gone on after that: what it did since is lost.
	Behind bool `json:"behind,omitempty"`
	// InCall says that calls were in flight when it was written.
	InCall bool `json:"in_call,omitempty"`
	// Why says how the box that was behind ended; nil: its server was killed.
	Why *Tombstone `json:"why,omitempty"`
	// Rescued says what the box could not bring along; nil: nothing is missing.
	Rescued *Rescue `json:"rescued,omitempty"`
}
