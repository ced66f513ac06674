package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// registry has the boxes in memory: it finds them, counts their calls, and chooses the
// boxes to evict. mu is never held over disk I/O, a call to a machine or a log write.
type registry struct {
	*env
	onTransition func(b *Box, from, to state) // for tests; called with mu

	mu      sync.Mutex
	phase   phase             // guarded by mu
	boxes   map[key]*Box      // guarded by mu; those in a live state
	freeing map[*Box]struct{} // guarded by mu; those whose resources are being freed
	// short are boxes of freeing that found no room on disk when the Manager closed. guarded by mu
	short map[*Box]struct{}
	// replacements are boxes that are being made, each with the box of its key that it is
	// to replace. guarded by mu
	replacements map[*Box]*Box
	waiting      []*Box                           // guarded by mu; boxes and replacements whose start waits for room, in the order of admission
	elsewhere    map[Owner]map[string]fleetRecord // guarded by mu; what owners have at other servers by guest, as of the last box that each asked for; see elsewhereLocked
	tombstones   *tombstones                      // guarded by mu
	uses         uint64                           // guarded by mu; orders boxes by use, independent of the clock
	drained      chan struct{}                    // guarded by mu; not nil while the Manager drains; closed when no call is left
	changed      signal                           // guarded by mu; broadcast when there may be more room, or a record may be free; nextChange has the causes
	since        time.Time                        // guarded by mu; when the Manager was started
	starting     int                              // guarded by mu; machines that are being made, and those that wait for a slot; not those that wait for room
	started      int64                            // guarded by mu; boxes made
	ended        map[Reason]int64                 // guarded by mu
	evicted      int64                            // guarded by mu; boxes evicted: hibernated or ended
}

// phase is where the Manager is in its life.
type phase uint8

const (
	phaseNew phase = iota
	phaseOpen
	phaseDraining
	phaseClosed
)

var errClosed = errors.New("the server is closing")

func newRegistry(e *env) *registry {
	return &registry{
		env: e, boxes: map[key]*Box{}, freeing: map[*Box]struct{}{}, short: map[*Box]struct{}{}, replacements: map[*Box]*Box{}, elsewhere: map[Owner]map[string]fleetRecord{}, ended: map[Reason]int64{}, tombstones: newTombstones(e.now),
	}
}

// openLocked returns an error unless new calls are accepted.
func (r *registry) openLocked(op string) error {
	switch r.phase {
	case phaseOpen:
		return nil
	case phaseNew:
		return &Error{Code: CodeNotReady, Op: op, Msg: "The server is not ready: it has not started yet", Hint: "Try again in a moment."}
	}
	return &Error{Code: CodeNotReady, Op: op, Msg: "The server is not ready: it is shutting down"}
}

// findLocked returns the live box of a key or, for a context, of a unique name; nil
// if there is none.
func (r *registry) findLocked(op string, k key) (*Box, error) {
	if b := r.boxes[k]; b != nil || k.kind != KindContext {
		return b, nil
	}
	var found *Box
	for o, b := range r.boxes {
		if o.owner != k.owner || o.kind != KindContext || b.name != k.id {
			continue
		}
		if found != nil {
			return nil, ambiguous(op, k.id)
		}
		found = b
	}
	return found, nil
}

// find reports whether a key belongs to a box in memory that the next call on it
// reaches.
func (r *registry) find(k key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Acquiring an ambiguous name reports the error.
	b, err := r.findLocked("", k)
	return b != nil || err != nil || r.returningLocked(k) != nil
}

// returningLocked returns the box of a key that is leaving memory and that the next call on the
// key wakes: it is being written to disk, or it broke and was written there earlier. It returns
// no box that ends for good.
func (r *registry) returningLocked(k key) *Box {
	for b := range r.freeing {
		if b.key.owner == k.owner && b.key.kind == k.kind && (b.key.id == k.id || k.kind == KindContext && b.name == k.id) && b.recordStays {
			return b
		}
	}
	return nil
}

// endingRecords returns the ids of the records that are about to be removed, since their boxes have
// ended for good.
func (r *registry) endingRecords() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := map[string]bool{}
	for b := range r.freeing {
		if b.lease != nil && !b.recordStays {
			ids[b.lease.ID()] = true
		}
	}
	return ids
}

// lastUsedLocked returns the live boxes, the last used first.
func (r *registry) lastUsedLocked() []*Box {
	return slices.SortedFunc(maps.Values(r.boxes), func(a, b *Box) int { return cmp.Compare(b.use.seq, a.use.seq) })
}

// expiredLocked reports whether a box was unused for the idle timeout.
func (r *registry) expiredLocked(b *Box) bool {
	return b.evictableLocked() && r.now().Sub(b.use.lastUsed) >= r.cfg().IdleTimeout
}

// touchLocked records a use of a box, now.
func (r *registry) touchLocked(b *Box) {
	r.uses++
	b.use.seq = r.uses
	b.use.lastUsed = r.now()
}

// pin keeps a box from being evicted until release or the end of its caller's context. Each call
// that begins releases the oldest pin of the box that is not lasting, which may be another
// caller's.
type pin struct {
	box     *Box
	lasting bool
	done    bool        // guarded by registry.mu
	claims  []claim     // guarded by registry.mu
	settled bool        // guarded by registry.mu; see Hold.Settle
	stop    func() bool // of the AfterFunc that releases
}

func (r *registry) pinLocked(ctx context.Context, b *Box, lasting bool) *pin {
	p := &pin{box: b, lasting: lasting}
	b.use.pins = append(b.use.pins, p)
	r.touchLocked(b)
	p.stop = context.AfterFunc(ctx, p.release)
	return p
}

func (p *pin) release() {
	r := p.box.reg
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unpinLocked(p)
}

// unpinLocked releases a pin. It cancels a start whose last pin it was.
func (r *registry) unpinLocked(p *pin) {
	if p.done {
		return
	}
	p.done = true
	p.stop()
	b := p.box
	b.use.pins = slices.DeleteFunc(b.use.pins, func(o *pin) bool { return o == p })
	// An adoption that has begun goes on: without a box in memory, nothing would count, evict or end
	// the guest, which may be this server's already.
	if b.state.starting() && len(b.use.pins) == 0 && (b.origin.adopted == nil || b.waits) {
		r.setState(b, stateEnding) // at once, so that no caller joins a start that ends
		b.cancelStart(errAbandoned)
	}
	if b.evictableLocked() {
		r.changed.broadcast()
	}
	r.signalDrainedLocked()
}

// unpinAllLocked releases all pins of a box that takes no more calls.
func (r *registry) unpinAllLocked(b *Box) {
	for len(b.use.pins) > 0 {
		r.unpinLocked(b.use.pins[0])
	}
}

// beginCall counts a call into a box. It uses up the oldest pin that is not lasting.
func (r *registry) beginCall(ctx context.Context, op string, b *Box) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return b.cancelled(op, context.Cause(ctx))
	case b.tomb != nil:
		return b.goneLocked(op)
	case !b.state.live() || b.state.starting():
		return b.cancelled(op, errEnded)
	case b.state == stateDraining:
		return b.drainingLocked(op)
	}
	if !(r.phase == phaseDraining && len(b.use.pins) > 0) {
		if err := r.openLocked(op); err != nil {
			return err
		}
	}
	if b.state != stateRunning {
		r.setState(b, stateRunning)
	}
	if b.use.calls++; b.use.calls == 1 {
		b.use.begun = r.now()
	}
	b.use.called, b.idle.load = true, load{}
	r.touchLocked(b)
	if i := slices.IndexFunc(b.use.pins, func(p *pin) bool { return !p.lasting }); i >= 0 {
		r.unpinLocked(b.use.pins[i])
	}
	return nil
}

// endCall counts the end of a call.
func (r *registry) endCall(b *Box) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b.use.calls--
	r.touchLocked(b)
	if b.use.calls == 0 {
		b.use.worked += r.now().Sub(b.use.begun)
		if b.state == stateRunning {
			r.setState(b, stateReady)
		}
		if b.use.noCalls != nil {
			close(b.use.noCalls)
			b.use.noCalls = nil
		}
	}
	r.signalDrainedLocked()
}

// drainBoxLocked waits until no call is in flight in a box, and refuses new ones until
// undrainBoxLocked. It releases mu while it waits. The caller ends the box or calls
// undrainBoxLocked, also after an error.
func (r *registry) drainBoxLocked(ctx context.Context, op string, b *Box) error {
	b.use.drainers++
	switch b.state {
	case stateReady, statePaused, stateRunning:
		b.use.drainedFrom = b.state
		r.setState(b, stateDraining)
	}
	if b.use.calls == 0 || !b.state.live() {
		return nil
	}
	if b.use.noCalls == nil {
		b.use.noCalls = make(chan struct{})
	}
	noCalls := b.use.noCalls
	r.mu.Unlock()
	defer r.mu.Lock()
	wait := r.cfg().StopWait
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-noCalls:
	case <-b.aborted:
	case <-ctx.Done():
		return b.cancelled(op, context.Cause(ctx))
	case <-t.C:
		return b.error(CodeStopFailed, op,
			fmt.Sprintf("Failed to %s %s: its code still runs after %s", op, b.key.id, span(wait)),
			"Running code is not interrupted. Try again when it has ended.", nil)
	}
	return nil
}

// undrainBoxLocked accepts calls again once the last drainer has given up.
func (r *registry) undrainBoxLocked(b *Box) {
	b.use.drainers--
	switch {
	case b.use.drainers > 0 || b.state != stateDraining:
	case b.use.calls > 0:
		r.setState(b, stateRunning)
	case b.use.drainedFrom == statePaused:
		r.setState(b, statePaused)
	default:
		r.setState(b, stateReady)
	}
}

// drainingLocked returns the error of a call into a box that is draining.
func (b *Box) drainingLocked(op string) *Error {
	if b.use.replacing {
		return b.error(CodeBusy, op, fmt.Sprintf("The %s %s is being rolled back to a snapshot", b.key.kind, b.key.id), "Try again in a moment.", nil)
	}
	return b.error(CodeBusy, op, fmt.Sprintf("The %s %s is being stopped", b.key.kind, b.key.id), "Create a new one.", nil)
}

// callsLocked counts the calls that are in flight or about to begin.
func (r *registry) callsLocked() int {
	n := 0
	for _, b := range r.boxes {
		n += b.use.calls + len(b.use.pins)
	}
	return n
}

// signalDrainedLocked wakes Close when no call is left.
func (r *registry) signalDrainedLocked() {
	if r.drained == nil || r.callsLocked() > 0 {
		return
	}
	select {
	case <-r.drained:
	default:
		close(r.drained)
	}
}

// notify wakes the waiters for room or for a record.
func (r *registry) notify() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed.broadcast()
}

// waitChangeLocked waits until room may have become free, or a box has changed. It releases mu
// while it waits. The error is the cause of ctx.
func (r *registry) waitChangeLocked(ctx context.Context) error {
	changed := r.changed.wait()
	r.mu.Unlock()
	select {
	case <-changed:
	case <-ctx.Done():
	}
	r.mu.Lock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// nextChange returns a channel that is closed at the next of these: a box becomes ready, leaves
// the registry or memory, or returns to the registry; the last pin of an idle box is released; a
// start gets its room; the last machine that was being made is made; a rollback ends; a record is
// released or removed.
func (r *registry) nextChange() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed.wait()
}

// tombstone describes the end, now, of the box that sp describes.
func (r *registry) tombstone(sp *spec, reason Reason, detail string) *Tombstone {
	k := sp.key
	return &Tombstone{ID: k.id, Kind: k.kind, Owner: k.owner, Name: sp.name, Reason: reason, Detail: detail, At: r.now(),
		Interpreter: sp.interpreter, Template: sp.template, Flavor: sp.flavor, Limits: sp.limits}
}

// addTombstoneLocked remembers a box that is gone for good.
func (r *registry) addTombstoneLocked(t *Tombstone) {
	r.ended[t.Reason]++
	r.tombstones.add(t)
}

// addTombstone remembers a box that is gone for good, unless a box of that key is in
// memory.
func (r *registry) addTombstone(t *Tombstone) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.boxes[t.key()] == nil {
		r.addTombstoneLocked(t)
	}
	r.changed.broadcast()
}

// addTombstones adds tombstones of boxes that are about to be gone, except of those that are in memory.
// withdraw takes back those that nothing has replaced meanwhile.
func (r *registry) addTombstones(all []*Tombstone) (withdraw func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := make(map[*Tombstone]*Tombstone, len(all))
	for _, t := range all {
		if r.boxes[t.key()] == nil {
			before[t], _ = r.tombstones.lru.Peek(t.key()) // also a mark that the box exists again
			r.tombstones.add(t)
		}
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for t, old := range before {
			// Merging replaces a tombstone by an equal one.
			switch there, ok := r.tombstones.lru.Peek(t.key()); {
			case !ok || there.Reason != t.Reason || !there.At.Equal(t.At):
			case old != nil:
				r.tombstones.add(old)
			default:
				r.tombstones.lru.Remove(t.key())
			}
		}
	}
}

// tombstoneOf returns the tombstone of a key or, for a context, of the newest box of
// that name; nil if there is none.
func (r *registry) tombstoneOf(k key) *Tombstone {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tombstones.get(k)
	if t == nil && k.kind == KindContext {
		t = r.tombstones.named(k.owner, k.id)
	}
	return t
}

// drain refuses new calls into all boxes from now on, and returns a channel that is closed when no
// call is in flight or about to begin.
func (r *registry) drain() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase = max(r.phase, phaseDraining)
	if r.drained == nil {
		r.drained = make(chan struct{})
		r.signalDrainedLocked()
	}
	return r.drained
}

// callsLeft counts the calls in flight; 0 once the Manager is closed.
func (r *registry) callsLeft() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase == phaseClosed {
		return 0
	}
	return r.callsLocked()
}
