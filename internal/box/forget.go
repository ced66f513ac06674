package box

import (
	"context"
	"errors"
	"fmt"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

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
		return false, recordKey(r).notNoted(op, "was lost with its server", err)
	}
	return true, nil
}

// notNoted returns the error of a box of which nothing is left but the limits of its network, which
// could not be noted: a new one must not take its place.
func (k key) notNoted(op, what string, err error) *Error {
	return &Error{
		Code: CodeInternal, Op: op, Msg: fmt.Sprintf("The %s %s %s, and the limits of its network could not be noted", k.kind, clip(k.id, maxID), what),
		Hint: fmt.Sprintf("The operator can make room on the disk of the server. Then call again. Until then, another %s works.", k.kind), Err: err, Context: k.details(),
	}
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
		withdraw := l.reg.addTombstones(limited)
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
		l.reg.addTombstone(t)
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
		reason, detail = ReasonIdle, "it was not used after it was hibernated"
	case snapshot.Evicted:
		reason, detail = ReasonEvicted, "the disk that hibernated boxes may use was full"
	}
	return l.reg.tombstone(endedSpec(&r.Record), reason, detail)
}
