package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/fairslots"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// records are the boxes and the saved snapshots on disk.
type records struct {
	*env
	writes   *fairslots.Slots       // for writing boxes to disk, or only their memory
	archives *fairslots.Slots       // for storing the files of boxes whose memory was written
	released func()                 // called when this process has released a record
	ending   func() map[string]bool // registry.endingRecords

	saveMu sync.Mutex
	saving map[Owner]int   // guarded by saveMu: snapshots that are being saved
	hidden map[string]bool // guarded by saveMu: records of those that may lack their files yet
}

// create makes the record of a new box, so that the next server knows of it if this
// one is killed. A box works without one, which is made when the box is written: then it
// is nil.
func (recs *records) create(b *Box) *snapshot.Lease {
	if !recs.hibernates() {
		return nil
	}
	lease, err := recs.tryCreate(b)
	if err != nil {
		recs.log.Warn("box has no record on disk", logkey.Kind, b.key.kind, logkey.Box, b.key.id, logkey.Error, err)
		return nil
	}
	return lease
}

// tryCreate is create that returns the error.
func (recs *records) tryCreate(b *Box) (*snapshot.Lease, error) {
	b.reg.mu.Lock()
	meta := b.metaLocked()
	b.reg.mu.Unlock()
	meta.Stale = true
	return recs.parts.Snapshots.Create(meta)
}

// notWoken restores Stale in the record of a box whose wake ended before any call reached the
// box, so that the next wake reports no loss of its own. stale is what Stale was before.
func (recs *records) notWoken(lease *snapshot.Lease, stale bool) {
	meta := lease.Meta()
	if meta.Stale == stale {
		return
	}
	meta.Stale = stale
	if err := lease.Update(meta); err != nil {
		recs.log.Warn("record not updated", logkey.Record, lease.ID(), logkey.Error, err)
	}
}

// release releases a record, which stays on disk with keep.
func (recs *records) release(lease *snapshot.Lease, keep bool) {
	var err error
	if keep {
		err = lease.Release()
	} else {
		err = lease.Remove()
	}
	if err != nil {
		recs.log.Warn("record not released", logkey.Record, lease.ID(), logkey.Error, err)
	}
	recs.released()
}

// acquire leases the record of a hibernated box; nil without an error if it was
// leased, removed or changed since it was listed.
func (recs *records) acquire(op string, r *snapshot.Record) (*snapshot.Lease, error) {
	lease, err := recs.parts.Snapshots.Acquire(r.ID)
	if errors.Is(err, snapshot.ErrDamaged) {
		removed, failed := recs.parts.Snapshots.RemoveDamaged(r.ID)
		if removed || errors.Is(failed, snapshot.ErrLeased) {
			return nil, nil // there is a tombstone now, or soon
		}
		if failed != nil {
			return nil, recordKey(r).notNoted(op, "is damaged on the server's disk", failed)
		}
	}
	switch {
	case errors.Is(err, snapshot.ErrNotFound), errors.Is(err, snapshot.ErrLeased):
		return nil, nil
	case err != nil:
		recs.log.Error("hibernated box not woken", logkey.Kind, r.Kind, logkey.Box, r.BoxID, logkey.Record, r.ID, logkey.Error, err)
		return nil, &Error{
			Code: CodeStartFailed, Op: op, Msg: fmt.Sprintf("Failed to wake the %s %s", r.Kind, r.BoxID), Err: err,
			Hint: "Try again; if it happens again, the operator finds the reason in the server's log.",
		}
	}
	if meta := lease.Meta(); lease.Dir() == "" || meta.BoxID != r.BoxID || meta.Owner != r.Owner {
		recs.release(lease, true)
		return nil, nil
	}
	return lease, nil
}

// removeDamaged removes the damaged records of a box, so that there is a tombstone. Records are
// damaged where others change files of the store, or the disk fails.
//
// Errors: CodeHeld if one has a lease, as while a sweep removes it, CodeInternal if what has to be
// known of the box could not be noted: then the record stays.
func (recs *records) removeDamaged(op string, k key) error {
	if !recs.hibernates() {
		return nil
	}
	ids, err := recs.parts.Snapshots.Damaged(func(m *snapshot.Meta) bool {
		return m.Purpose == snapshot.Box && Owner(m.Owner) == k.owner && Kind(m.Kind) == k.kind && (m.BoxID == k.id || k.kind == KindContext && m.Name == k.id)
	})
	if err != nil {
		recs.log.Warn("damaged records not found", logkey.Error, err)
	}
	for _, id := range ids {
		switch _, err := recs.parts.Snapshots.RemoveDamaged(id); {
		case errors.Is(err, snapshot.ErrLeased):
			return k.held(op)
		case err != nil:
			return k.notNoted(op, "is damaged on the server's disk", err)
		}
	}
	return nil
}

// put writes the memory and the files of a box to a new record. The memory of other boxes does not
// wait for the files of this one. Until put returns, saved does not list the record. put gets meta
// when it has a slot, and waits for the slots as long as ctx lasts.
func (recs *records) put(ctx context.Context, lease *snapshot.Lease, meta func() snapshot.Meta, b *Box) error {
	defer recs.hide(lease.ID())()
	leave, err := recs.writes.Acquire(ctx, string(b.key.owner))
	if err != nil {
		return err
	}
	defer leave()
	fits := false
	err = recs.putMemory(ctx, lease, meta(), b, func(_ context.Context, _ string, room bool) { fits = room })
	if err != nil || !fits {
		return err
	}
	leave()
	leave, err = recs.archives.Acquire(ctx, string(b.key.owner))
	if err != nil {
		return err
	}
	defer leave()
	_ = recs.putFiles(ctx, lease, b) // the snapshot is worth keeping without them
	return context.Cause(ctx)
}

// hide makes saved leave out a record until show is called.
func (recs *records) hide(id string) (show func()) {
	recs.saveMu.Lock()
	defer recs.saveMu.Unlock()
	if recs.hidden == nil {
		recs.hidden = make(map[string]bool)
	}
	recs.hidden[id] = true
	return func() {
		recs.saveMu.Lock()
		defer recs.saveMu.Unlock()
		delete(recs.hidden, id)
	}
}

// putMemory writes the memory of a box to a record. It calls files after each snapshot that it
// takes, to store the files beside it if there is room. Where both do not fit, only the memory is
// written. The caller has a slot of writes.
func (recs *records) putMemory(ctx context.Context, lease *snapshot.Lease, meta snapshot.Meta, b *Box, files func(ctx context.Context, dir string, room bool)) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	room := true
	take := func(ctx context.Context, dir string) error {
		if err := b.machine.Snapshot(ctx, dir); err != nil {
			return err
		}
		files(ctx, dir, room)
		return nil
	}
	err := lease.Write(ctx, meta, recs.expected(b), take)
	if errors.Is(err, engine.ErrExhausted) {
		// The disk is full though the store is not. With the most that may be written as
		// the estimate, the store evicts enough, if it can.
		if stats, unknown := b.machine.Stats(ctx); unknown == nil {
			err = lease.Write(ctx, meta, int64(min(stats.MemoryBytes, 1<<40)), take)
		}
	}
	if _, full := errors.AsType[*snapshot.FullError](err); full {
		recs.log.Warn("no room for the files of a box beside its memory", logkey.Guest, b.guestID, logkey.Error, err)
		room = false
		err = lease.Write(ctx, meta, 0, take)
	}
	return err
}

// putFiles replaces the files in a record that has the memory of the box. If ctx ends, the
// record keeps those that it has. The caller has a slot of archives, and need not log the error.
func (recs *records) putFiles(ctx context.Context, lease *snapshot.Lease, b *Box) error {
	var replaced int64
	if info, err := readHomeInfo(lease.Dir()); err == nil {
		replaced = info.Bytes
	}
	err := lease.Extend(ctx, replaced, func(ctx context.Context, dir string) error { return recs.saveHome(ctx, b, dir) })
	recs.filesStored(ctx, b, err)
	return err
}

// filesStored logs that files of a box could not be stored beside its memory, which is worth
// keeping without them.
func (recs *records) filesStored(ctx context.Context, b *Box, err error) {
	if err != nil && ctx.Err() == nil && !b.ended() {
		recs.log.Warn("files of the box not stored apart from its memory", logkey.Guest, b.guestID, logkey.Error, err)
	}
}

// expected returns the size of a box on disk as of its last write; 0 if that is unknown.
func (recs *records) expected(b *Box) int64 {
	b.reg.mu.Lock()
	record, dropped := b.lease, b.disk.bytes
	b.reg.mu.Unlock()
	if record == nil {
		return 0
	}
	return cmp.Or(record.Bytes(), dropped)
}

// list lists the records of an owner's boxes: hibernated ones, those that this
// process or another has in memory, and those that were lost with their server. An
// empty kind means both. It leaves out records that this process is about to remove: a box that was
// rolled back has another. The error is CodeNotReady if the directory cannot be read: a box
// that is not listed then may exist.
func (recs *records) list(op string, owner Owner, kind Kind) ([]snapshot.Record, error) {
	if !recs.hibernates() {
		return nil, nil
	}
	before := recs.ending() // a record may be removed while they are listed
	found, err := recs.listed(op, func(meta *snapshot.Meta) bool {
		return meta.Purpose == snapshot.Box && meta.Owner == string(owner) && meta.Aside == "" && (kind == "" || meta.Kind == string(kind))
	})
	after := recs.ending()
	return slices.DeleteFunc(found, func(r snapshot.Record) bool { return r.Own && (before[r.ID] || after[r.ID]) }), err
}

// listed lists the records for which match returns true.
func (recs *records) listed(op string, match func(*snapshot.Meta) bool) ([]snapshot.Record, error) {
	found, err := recs.parts.Snapshots.List(match)
	if err != nil {
		recs.log.Warn("records of boxes and snapshots not listed", logkey.Operation, op, logkey.Error, err)
		return nil, &Error{
			Code: CodeNotReady, Op: op, Msg: "The server is not ready: it cannot list the boxes and snapshots on its disk",
			Hint: "Try again in a moment; nothing is lost. If it happens again, the operator finds the reason in the server's log.",
		}
	}
	return found, nil
}

// find finds the record of a box by its key, see findRecord.
func (recs *records) find(op string, k key) (*snapshot.Record, error) {
	found, err := recs.list(op, k.owner, k.kind)
	if err != nil {
		return nil, err
	}
	return findRecord(found, k)
}

// hibernated lists the records of an owner's hibernated boxes.
func (recs *records) hibernated(op string, owner Owner, kind Kind) ([]snapshot.Record, error) {
	found, err := recs.list(op, owner, kind)
	return slices.DeleteFunc(found, func(r snapshot.Record) bool { return r.Leased || r.Written.IsZero() }), err
}

// leasedElsewhere reports whether another process has the box of a key in memory.
func (recs *records) leasedElsewhere(op string, k key) (bool, error) {
	r, err := recs.find(op, k)
	return r != nil && r.Leased && !r.Own, err
}

// findRecord finds the record of a box by the box's id or, for a context, its name;
// nil if there is none.
func findRecord(found []snapshot.Record, k key) (*snapshot.Record, error) {
	var byID, byName *snapshot.Record
	names := 0
	for i := range found {
		r := &found[i]
		switch {
		case r.BoxID == k.id:
			if byID == nil || compareRecords(r, byID) > 0 {
				byID = r
			}
		case k.kind == KindContext && r.Name == k.id && (r.Leased || !r.Written.IsZero()):
			byName = r
			names++
		}
	}
	if byID == nil && names > 1 {
		return nil, ambiguous("find context", k.id)
	}
	if byID == nil {
		byID = byName
	}
	return byID, nil
}

// compareRecords ranks two records of one box, of which there are two while the box
// is rolled back: that of another server's live box is above one with data, that above
// one that was lost or is about to be removed; then the one used last.
func compareRecords(a, b *snapshot.Record) int {
	return cmp.Or(
		compareBool(a.Leased && !a.Own, b.Leased && !b.Own),
		compareBool(!a.Written.IsZero(), !b.Written.IsZero()),
		compareBool(a.Own, b.Own),
		a.Used.Compare(b.Used),
	)
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func recordKey(r *snapshot.Record) key { return key{Owner(r.Owner), Kind(r.Kind), r.BoxID} }

// infoOfRecord describes a hibernated box.
func infoOfRecord(r *snapshot.Record) Info {
	t := Interpreter(r.Interpreter)
	return Info{
		ID: r.BoxID, Kind: Kind(r.Kind), Owner: Owner(r.Owner), Name: r.Name, Description: r.Description,
		Interpreter: t, Template: r.Template, Language: t.Language(), Flavor: Flavor(r.Flavor), Limits: r.Limits, State: StateHibernated,
		Created: r.Created, LastUsed: r.Used,
	}
}

// specOf describes the box that a wake makes from a record.
func (recs *records) specOf(lease *snapshot.Lease) spec {
	meta := lease.Meta()
	unreported, err := decodeReport(meta.Unreported)
	if err != nil {
		recs.log.Warn("losses of a hibernated box not reported", logkey.Record, lease.ID(), logkey.Error, err)
	}
	return spec{
		key: key{Owner(meta.Owner), Kind(meta.Kind), meta.BoxID}, name: meta.Name, desc: meta.Description,
		interpreter: Interpreter(meta.Interpreter), template: meta.Template, flavor: Flavor(meta.Flavor), limits: meta.Limits, created: meta.Created,
		origin: origin{record: lease, stale: meta.Stale, inCall: meta.InCall, restored: meta.Restored, ran: meta.Ran, written: meta.Written, report: unreported},
	}
}

// withoutPath is the text of an error without the directories of the host.
func withoutPath(err error) string {
	text := err.Error()
	if failed, ok := errors.AsType[*fs.PathError](err); ok && filepath.IsAbs(failed.Path) {
		text = strings.ReplaceAll(text, failed.Path, filepath.Base(failed.Path))
	}
	return text
}

// reasonOf is the cause of an error in one line for people.
func reasonOf(err error) string {
	for _, known := range []struct {
		is   error
		text string
	}{
		{engine.ErrExhausted, "the disk or the memory of the host is full"},
		{snapshot.ErrFull, "the disk that boxes may use is full"},
		{context.DeadlineExceeded, "it took too long"},
	} {
		if errors.Is(err, known.is) {
			return known.text
		}
	}
	return strings.TrimSpace(clip(withoutPath(err), 200))
}
