package box

import (
	"context"
	"errors"
	"fmt"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// Stop ends a box and reports whether there was one. A session ends at once, its
// running calls fail with CodeGone. For a context (id or unique name) Stop waits
// for running calls, at most Config.StopWait, refusing new ones, and never
// interrupts them: CodeStopFailed if they do not end.
func (m *Manager) Stop(ctx context.Context, owner Owner, kind Kind, id string) (bool, error) {
	op := "stop " + string(kind)
	k := key{owner, kind, id}
	for {
		b, leaving, err := m.life.stop(ctx, op, k)
		if err != nil {
			return b != nil, err
		}
		if leaving == nil {
			return m.stopHibernated(op, k)
		}
		select {
		case <-leaving:
		case <-ctx.Done():
			return true, cancelled(op, k, context.Cause(ctx))
		}
		if b != nil {
			return true, nil
		}
	}
}

// stop ends the live box of a key; nil if there is none. leaving is closed when the box
// has left memory or, without a box, when one of that key that is being hibernated has
// left memory or stays; nil if there is neither.
func (l *lifecycle) stop(ctx context.Context, op string, k key) (b *Box, leaving <-chan struct{}, err error) {
	l.reg.mu.Lock()
	defer l.reg.mu.Unlock()
	b, err = l.reg.findLocked(op, k)
	if err != nil {
		return nil, nil, err
	}
	if b == nil {
		if hibernating := l.reg.returningLocked(k); hibernating != nil {
			leaving = hibernating.unloadDone
		}
		return nil, leaving, nil
	}
	if !l.hibernates() && l.expireLocked(b) {
		return nil, nil, nil
	}
	if k.kind == KindContext {
		defer l.reg.undrainBoxLocked(b)
		if err := l.reg.drainBoxLocked(ctx, op, b); err != nil {
			return b, nil, err
		}
	}
	l.terminateLocked(b, ReasonStopped, "")
	return b, b.unloadDone, nil
}

// stopHibernated removes a hibernated box.
func (m *Manager) stopHibernated(op string, k key) (bool, error) {
	r, err := m.records.find(op, k)
	switch {
	case r == nil || err != nil:
		return false, err
	case r.Leaving:
		return true, k.leaving(op)
	case r.Leased && !r.Own:
		return true, k.held(op)
	case r.Written.IsZero(): // there is nothing left of it
		return false, nil
	}
	err = m.parts.Snapshots.Delete(r.ID)
	m.reg.notify() // it held the record
	switch {
	case err == nil:
	case errors.Is(err, snapshot.ErrNotFound):
		return false, nil
	case errors.Is(err, snapshot.ErrLeased):
		return true, &Error{Code: CodeBusy, Op: op, Msg: fmt.Sprintf("The %s %s has just been woken", k.kind, clip(k.id, maxID)), Hint: "Stop it again.", Context: k.details()}
	default:
		return true, &Error{Code: CodeInternal, Op: op, Msg: fmt.Sprintf("Failed to remove the hibernated %s %s", k.kind, clip(k.id, maxID)), Err: err, Context: k.details()}
	}
	m.reg.bury(m.reg.tombstone(endedSpec(r), ReasonStopped, ""))
	return true, nil
}

// endedSpec describes the box of a record as far as its tombstone needs it.
func endedSpec(r *snapshot.Record) *spec {
	return &spec{key: recordKey(r), name: r.Name, interpreter: Interpreter(r.Interpreter), template: r.Template, flavor: Flavor(r.Flavor), limits: r.Limits}
}

// removeLost removes the record of a box that was lost with its server before
// anything had been written, and remembers the box; false if another process has it. It is an
// error if the limits of the box could not be shared: then the record stays.
func (l *lifecycle) removeLost(op string, r *snapshot.Record) (bool, error) {
	lease, err := l.parts.Snapshots.Acquire(r.ID)
	if err != nil {
		return errors.Is(err, snapshot.ErrNotFound), nil
	}
	if lease.Dir() != "" {
		l.records.release(lease, true)
		return false, nil
	}
	// Remembered first, so that there is never neither a record nor a tombstone.
	stay, err := l.remember([]snapshot.Removal{{Record: *r, Why: snapshot.Lost}})
	l.records.release(lease, len(stay) > 0)
	if err != nil {
		k := recordKey(r)
		return false, &Error{Code: CodeInternal, Op: op, Msg: fmt.Sprintf("The %s %s was lost with its server, and the limits of its network could not be noted", k.kind, clip(k.id, maxID)),
			Hint: fmt.Sprintf("The operator can make room on the disk of the server. Then call again. Until then, another %s works.", k.kind), Err: err, Context: k.details()}
	}
	return true, nil
}

// departure is a box whose record is about to be removed.
type departure struct {
	record string // its id
	tomb   *Tombstone
}

// remember makes tombstones of hibernated boxes whose records are about to be removed, and
// shares those with limits at once: another server finds the record or the limits in the file.
// It returns the records whose limits it could not share, with the reason; these must stay, and
// their boxes are not forgotten.
func (l *lifecycle) remember(removed []snapshot.Removal) (stay []string, err error) {
	var all []departure
	var limited []*Tombstone
	for i := range removed {
		tomb := l.departing(&removed[i])
		if tomb == nil {
			continue
		}
		all = append(all, departure{removed[i].ID, tomb})
		if len(tomb.Limits) > 0 {
			limited = append(limited, tomb)
		}
	}
	if len(limited) > 0 {
		withdraw := l.reg.buryAll(limited)
		if err = l.maintainer.mergeTombstones(context.Background()); err != nil { // also while the Manager closes
			withdraw()
			err = fmt.Errorf("share the limits of the networks of boxes: %w", err)
		}
	}
	for _, d := range all {
		t := d.tomb
		if err != nil && len(t.Limits) > 0 {
			stay = append(stay, d.record)
			continue
		}
		l.reg.bury(t)
		l.log.Info("hibernated box removed", logkey.Kind, t.Kind, logkey.Box, t.ID, logkey.Reason, t.Reason, logkey.Detail, t.Detail)
	}
	return stay, err
}

// departing returns the tombstone of the box whose record is about to be removed, nil if no box
// goes with the record.
func (l *lifecycle) departing(r *snapshot.Removal) *Tombstone {
	if r.Purpose != snapshot.Box {
		return nil
	}
	if r.Aside != "" { // the box continues elsewhere
		l.log.Info("earlier state of a box removed", logkey.Kind, r.Kind, logkey.Box, r.BoxID, logkey.Reason, r.Why)
		return nil
	}
	reason, detail := ReasonUnreadable, "its record on disk was damaged"
	switch r.Why {
	case snapshot.Lost:
		reason, detail = ReasonHostRestart, "the server was killed before the box had been written to disk"
		if known := l.reg.tombstoneOf(recordKey(&r.Record)); known != nil && known.At.After(r.Created) {
			reason, detail = known.Reason, known.Detail // only its limits could not be shared
		}
	case snapshot.Age:
		reason, detail = ReasonIdle, "nobody had used it since it was hibernated"
	case snapshot.Evicted:
		reason, detail = ReasonEvicted, "the disk that hibernated boxes may use was full"
	}
	return l.reg.tombstone(endedSpec(&r.Record), reason, detail)
}
