package box

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/glovebox-dev/glovebox/internal/tracing"
)

// Hold keeps a box in memory for a call, and says how the box was acquired.
//
// Created, Woken and Lost are the report of how the box came into memory. One hold at a
// time has it: that of the call that brought the box into memory or, if that call was
// cancelled, failed, or cannot report, of a later one; see Settle.
type Hold struct {
	Created bool       // the box is new
	Woken   *Woken     // the box was hibernated; nil otherwise
	Lost    *Tombstone // an earlier box with this id ended and its state is gone

	pin    *pin
	report *report // nil: the hold has none
}

// Release settles the report as delivered, unless Settle was called, and lets the box be
// evicted or expire again. The first call into the box and the end of the acquiring call's
// context let it be evicted as well; that first call does not if the hold is that of a fork.
// Release may be called again.
func (h Hold) Release() {
	h.Settle(true)
	if h.pin != nil {
		h.pin.release()
	}
}

const (
	// wakeWait is how long a call on a hibernated box waits for room when all boxes
	// in memory are in use.
	wakeWait = 30 * time.Second
	// handoverWait is how long a call waits for another server to release a box.
	// Clients start a new server while the one before is still ending, which the
	// SDKs of MCP kill after 4 s (see docs/clients.md).
	handoverWait = 5 * time.Second
	// leavingWait is that wait when the other server is stopping and writes the box to disk,
	// which takes long for thousands of files. The SDKs of MCP give up after 60 s.
	leavingWait = 50 * time.Second
	// acquireWait bounds these waits together.
	acquireWait = 55 * time.Second
	// Another process announces nothing when it releases a record, so that attempts
	// to take it are repeated, at first after firstRetry and at most every lastRetry.
	firstRetry = 10 * time.Millisecond
	lastRetry  = 250 * time.Millisecond
)

// search looks for a box by its key.
type search struct {
	op    string
	key   key
	check func(*spec) error // whether the box is what the caller wants; nil: it is
	make  func() spec       // describes a new one, if there is none; nil: none is made

	lasting bool // the hold keeps the box in memory until it is released, whatever calls begin
}

// attempt is the outcome of one attempt to acquire a box.
type attempt struct {
	done bool // with box, hold and err as acquire returns them
	box  *Box
	hold Hold
	err  error         // without done: why acquire fails if the next attempts fail as well
	wait time.Duration // how long acquire repeats such attempts; 0: wakeWait

	unloadDone <-chan struct{} // not nil: try again when this is closed, however long it takes
	change     bool            // try again when something has changed in this process
}

func giveUp(err error) attempt { return attempt{done: true, err: err} }

// acquire finds a box, live or hibernated, and pins it for the caller, or makes it.
// The box is nil if there is none and none is made.
//
// Errors: CodeHeld if another server process has the box in memory, CodeBusy if another call
// wakes or stops it for longer than the wait, CodeLimit if there is no room for it, CodeNotReady
// if the Manager does not accept calls or cannot list the boxes, CodeInvalid if several contexts
// have the name, CodeCancelled, and those of search.check.
func (m *Manager) acquire(ctx context.Context, q search) (*Box, Hold, error) {
	end := time.Now().Add(acquireWait)
	begun := map[time.Duration]time.Time{} // of the waits of each length
	var changed <-chan struct{}
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		try := m.attempt(ctx, &q)
		if try.done {
			return try.box, try.hold, try.err
		}
		if try.change && changed == nil {
			changed = m.reg.nextChange()
			continue // something may have changed before
		}
		limit := cmp.Or(try.wait, wakeWait)
		if begun[limit].IsZero() {
			begun[limit] = time.Now()
		}
		left := min(limit-time.Since(begun[limit]), time.Until(end))
		if left <= 0 && try.unloadDone == nil {
			if try.err == nil {
				try.err = q.key.error(CodeBusy, q.op, "another call is waking or stopping it", "Try again in a moment.")
			}
			return nil, Hold{}, try.err
		}
		var timer <-chan time.Time
		switch {
		case try.unloadDone != nil: // has a bound of its own
			changed = nil
		case try.change:
			// The store's own eviction holds records as well, and announces only some.
			timer = time.After(min(left, time.Second))
		default:
			changed, timer = nil, time.After(min(left, retry))
		}
		select {
		case <-try.unloadDone:
		case <-changed:
		case <-timer:
		case <-ctx.Done():
			return nil, Hold{}, cancelled(q.op, q.key, context.Cause(ctx))
		}
		changed = nil
	}
}

// attempt looks in memory, on disk, in the fleet, and in memory again: nothing is locked while
// the disk is read or the fleet is asked.
func (m *Manager) attempt(ctx context.Context, q *search) attempt {
	if try, ok := m.attemptLive(ctx, q); ok {
		return try
	}
	r, err := m.records.find(q.op, q.key)
	switch {
	case err != nil:
		return giveUp(err)
	case r == nil:
		if err := m.records.removeDamaged(q.op, q.key); CodeOf(err) == CodeHeld {
			return attempt{err: err, wait: handoverWait}
		} else if err != nil {
			return giveUp(err)
		}
	case r.Leaving:
		return attempt{err: q.key.heldByStoppingServer(q.op), wait: leavingWait}
	case r.Leased && !r.Own:
		return attempt{err: q.key.held(q.op), wait: handoverWait}
	case r.Leased:
		return attempt{change: true} // by a call that is about to wake the box
	case r.Written.IsZero():
		if removed, err := m.life.removeLost(q.op, r); err != nil {
			return giveUp(err)
		} else if !removed {
			return attempt{}
		}
		r = nil
	}
	var adopted *spec
	if r == nil {
		var try *attempt
		if adopted, try = m.adoptable(ctx, q); try != nil {
			return *try
		}
	}
	if r == nil && adopted == nil && q.make == nil {
		// It may have been woken between the two lookups.
		try, ok := m.attemptLive(ctx, q)
		if !ok {
			try = attempt{done: true}
		}
		return try
	}
	if adopted == nil {
		if err := m.learnElsewhere(ctx, q.op, q.key); err != nil {
			return giveUp(err)
		}
	}
	var sp spec
	switch {
	case adopted != nil:
		sp = *adopted
		if q.check != nil {
			if err := q.check(&sp); err != nil {
				return giveUp(err)
			}
		}
	case r == nil:
		m.maintainer.learnTombstones()
		sp = q.make()
		sp.key = q.key
		sp.chosen = q.key.kind == KindSession
	default:
		sp = spec{key: q.key, interpreter: Interpreter(r.Interpreter), template: r.Template, flavor: Flavor(r.Flavor), limits: r.Limits}
		if q.check != nil {
			if err := q.check(&sp); err != nil {
				return giveUp(err)
			}
		}
		if err := m.reg.roomFor(q.op, &sp); err != nil {
			return m.noRoom(err)
		}
		record, err := m.records.acquire(q.op, r)
		if record == nil {
			return attempt{done: err != nil, err: err}
		}
		sp = m.records.specOf(record)
	}
	return m.resolve(ctx, q, m.life.newBox(sp))
}

// attemptLive looks for the box in memory; ok is false if it is not there.
func (m *Manager) attemptLive(ctx context.Context, q *search) (try attempt, ok bool) {
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	return m.attemptLiveLocked(ctx, q)
}

func (m *Manager) attemptLiveLocked(ctx context.Context, q *search) (try attempt, ok bool) {
	if ctx.Err() != nil {
		return giveUp(cancelled(q.op, q.key, context.Cause(ctx))), true
	}
	if err := m.reg.openLocked(q.op); err != nil {
		return giveUp(err), true
	}
	b, err := m.reg.findLocked(q.op, q.key)
	if err != nil {
		return giveUp(err), true
	}
	if b != nil && m.life.expireLocked(b) {
		b = nil
	}
	switch {
	case b == nil:
		if returning := m.reg.returningLocked(q.key); returning != nil {
			return attempt{unloadDone: returning.unloadDone}, true
		}
		return attempt{}, false
	case b.state == stateDraining && q.key.kind == KindContext:
		return giveUp(b.drainingLocked(q.op)), true
	case q.check != nil:
		if err := q.check(&b.spec); err != nil {
			return giveUp(err), true
		}
	}
	return attempt{done: true, box: b, hold: Hold{pin: m.reg.pinLocked(ctx, b, q.lasting)}}, true
}

// resolve admits a box that was neither in memory nor leased, unless another call has
// brought it into memory meanwhile. Its record is released if it is not admitted.
func (m *Manager) resolve(ctx context.Context, q *search, b *Box) attempt {
	record := b.origin.record
	m.reg.mu.Lock()
	try, ok := m.attemptLiveLocked(ctx, q)
	admitted := false
	if !ok {
		switch err := m.life.admitLocked(q.op, b); {
		case err == nil:
			admitted = true
			b.report = m.reportLocked(b)
			try = attempt{done: true, box: b, hold: Hold{pin: m.reg.pinLocked(ctx, b, q.lasting)}}
		case record != nil:
			try = m.noRoom(err)
		default:
			try = giveUp(err)
		}
	}
	m.reg.mu.Unlock()
	if !admitted {
		b.cancelStart(nil)
		if record != nil {
			m.records.release(record, true)
		}
	}
	return try
}

// noRoom is the attempt to wake a box that was not admitted. With eviction there may be
// room soon.
func (m *Manager) noRoom(err error) attempt {
	if CodeOf(err) == CodeLimit && m.cfg().Evict {
		return attempt{err: err, change: true}
	}
	return giveUp(err)
}

// existing acquires a box that exists, live or hibernated, for a call that does not report
// how: the hold has only the pin.
func (m *Manager) existing(ctx context.Context, q search) (*Box, Hold, error) {
	b, hold, err := m.acquire(ctx, q)
	if err != nil {
		return nil, Hold{}, err
	}
	if b == nil {
		return nil, Hold{}, m.notFound(q.op, q.key)
	}
	return b.await(ctx, q.op, hold)
}

// create admits a new box and waits for its start.
func (m *Manager) create(ctx context.Context, op string, sp spec) (*Box, Hold, error) {
	if err := m.learnElsewhere(ctx, op, sp.key); err != nil {
		return nil, Hold{}, err
	}
	b, hold, err := m.life.admit(ctx, op, sp)
	if err != nil {
		return nil, Hold{}, err
	}
	return b.await(ctx, op, hold)
}

// await waits for the start of a box that the caller holds.
func (b *Box) await(ctx context.Context, op string, hold Hold) (*Box, Hold, error) {
	if err := b.awaitReady(ctx, b.origin.record != nil); err != nil {
		hold.Release()
		return nil, Hold{}, b.cancelled(op, err)
	}
	if b.startErr != nil {
		hold.Release()
		return nil, Hold{}, b.startErr
	}
	return b, hold, nil
}

// awaitReporting is await for a call that reports how the box was acquired.
func (b *Box) awaitReporting(ctx context.Context, op string, hold Hold) (*Box, Hold, error) {
	if _, _, err := b.await(ctx, op, hold); err != nil {
		return nil, Hold{}, err
	}
	return b, b.takeReport(hold), nil
}

// awaitReady waits until the start of the box has succeeded or failed. The error is
// the cause of ctx.
func (b *Box) awaitReady(ctx context.Context, woken bool) (err error) {
	select {
	case <-b.ready:
		return nil
	default:
	}
	name := "box start"
	if woken {
		name = "box wake"
	}
	ctx, span := tracing.Start(ctx, name)
	select {
	case <-b.ready:
		span.Set("glovebox.box.source", string(b.Info().Source))
		span.End(b.startErr)
	case <-ctx.Done():
		err = context.Cause(ctx)
		span.End(err)
	}
	return err
}

// unused returns an error if a session of that id exists. On success, the losses that other
// servers have recorded for the id are loaded.
func (m *Manager) unused(op string, k key) error {
	r, err := m.records.find(op, k)
	exists := r != nil && !(r.Leased && r.Own) && (r.Leased || !r.Written.IsZero())
	switch {
	case err != nil:
		return err
	case exists || m.reg.find(k):
		return idTaken(op, k.id)
	}
	if err := m.records.removeDamaged(op, k); err != nil {
		return err
	}
	m.maintainer.learnTombstones()
	return nil
}

func idTaken(op, id string) error {
	return &Error{
		Code: CodeInvalid, Op: op, Msg: fmt.Sprintf("Session %s exists already", id), Hint: "Leave the new id out, or choose another.",
		Context: map[string]string{"field": "new_session_id", "session_id": id},
	}
}

// Find returns the kind of the owner's box that callers name id, in memory, on disk or at
// another server of the fleet: a session of that id, else a context of that id or name; "" if
// there is none. The box may end before the caller acquires it.
//
// Errors: CodeNotReady if the boxes on disk cannot be listed.
func (m *Manager) Find(owner Owner, id string) (Kind, error) {
	keys := []key{{owner, KindSession, id}, {owner, KindContext, id}}
	for _, k := range keys {
		if m.reg.find(k) {
			return k.kind, nil
		}
	}
	found, err := m.records.list("find box", owner, "")
	if err != nil {
		return "", err
	}
	for _, k := range keys {
		for i := range found {
			if r := &found[i]; r.Kind == string(k.kind) && (r.BoxID == id || k.kind == KindContext && r.Name == id) {
				return k.kind, nil
			}
		}
	}
	ctx, cancel := context.WithTimeout(m.base, fleetTimeout)
	defer cancel()
	_, n, err := m.inFleet(ctx, "find box", owner, "", id)
	return n.Kind, err
}

// NotFound returns the error for an id of an owner without a box of the kind, with the reason why
// its box ended, if it had one.
func (m *Manager) NotFound(op string, owner Owner, kind Kind, id string) *Error {
	return m.notFound(op, key{owner, kind, id}).(*Error)
}

// notFound returns the error for a key without a box, with the reason why its box ended.
func (m *Manager) notFound(op string, k key) error {
	t := m.reg.tombstoneOf(k)
	e := &Error{Code: CodeNotFound, Op: op, Context: map[string]string{string(k.kind) + "_id": clip(k.id, maxID)}}
	if k.kind == KindSession {
		e.Msg, e.Hint = "Session not found: "+clip(k.id, maxID), "List the sessions with get_sessions."
	} else {
		e.Msg, e.Hint = "Context not found: "+clip(k.id, maxID), "List the contexts, or create a new one."
	}
	if t == nil {
		return e
	}
	e.Msg += "; " + t.Explain(m.now())
	e.Context["reason"] = string(t.Reason)
	if k.kind == KindSession {
		e.Hint = "Its variables and files are gone. execute_code with the same session_id makes a new one."
	} else {
		e.Msg += "; create a new one"
		e.Hint = "Create a new context; the variables of the old one are gone."
	}
	return e
}
