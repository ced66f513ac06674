package box

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

// SavedSnapshot describes a snapshot that an owner keeps.
type SavedSnapshot struct {
	ID          string // of the snapshot
	Name        string // may be empty
	Description string
	Kind        Kind   // of the box
	BoxID       string // of the box that it was taken of
	Interpreter Interpreter
	Language    string
	Flavor      Flavor
	Created     time.Time
	Bytes       int64 // on disk
	// Aside says why it was kept without a request: it is the earlier state
	// of a box whose memory could not be restored. It goes when it is too old or
	// room is needed. "": it was asked for.
	Aside string
}

// SnapshotOptions describes a snapshot; all fields may be empty.
type SnapshotOptions struct{ Name, Description string }

// SaveSnapshot writes the state of an owner's box to disk, to go back to or to start
// others from, until it is deleted. It waits for calls that are under way; the
// box is then paused for a moment and continues. A hibernated box is woken. The hold is one
// of the box: it has the report of what the box had lost, which the snapshot lacks as well.
// The caller releases it.
//
// Errors: CodeNotFound, CodeLimit (Config.MaxSnapshots, snapshot.Config.MaxSaved, or the disk is full),
// CodeUnsupported, else as Session.
func (m *Manager) SaveSnapshot(ctx context.Context, owner Owner, kind Kind, id string, opts SnapshotOptions) (SavedSnapshot, Hold, error) {
	op := "snapshot " + string(kind)
	if !m.hibernates() {
		return SavedSnapshot{}, Hold{}, unsupported(op)
	}
	if err := checkTexts(op, "snapshot", opts.Name, opts.Description); err != nil {
		return SavedSnapshot{}, Hold{}, err
	}
	end, err := m.records.beginSave(op, owner, m.cfg().MaxSnapshots)
	if err != nil {
		return SavedSnapshot{}, Hold{}, err
	}
	defer end()
	b, held, err := m.existing(ctx, search{op: op, key: key{owner, kind, id}})
	if err != nil {
		return SavedSnapshot{}, Hold{}, err
	}
	saved, err := m.saveSnapshot(ctx, op, b, opts)
	if err != nil {
		held.Release()
		return SavedSnapshot{}, Hold{}, err
	}
	return saved, b.takeReport(held), nil
}

// saveSnapshot is SaveSnapshot of a box that the caller holds.
func (m *Manager) saveSnapshot(ctx context.Context, op string, b *Box, opts SnapshotOptions) (SavedSnapshot, error) {
	owner := b.key.owner
	meta := snapshot.Meta{
		Purpose: snapshot.Saved, Owner: string(owner), Kind: string(b.key.kind), BoxID: b.key.id, Name: opts.Name, Description: opts.Description,
		Interpreter: string(b.interpreter), Template: b.template, Flavor: string(b.flavor), Limits: b.limits, Created: m.now(), Used: m.now(),
	}
	lease, err := m.parts.Snapshots.Create(meta)
	if err != nil {
		return SavedSnapshot{}, b.snapshotError(ctx, op, err)
	}
	err = b.exclusively(ctx, op, func(ctx context.Context, _ *machine.Machine) error {
		// Only now: no save holds a slot while it waits for its owner's calls.
		return m.records.put(ctx, lease, func() snapshot.Meta {
			m.reg.mu.Lock()
			defer m.reg.mu.Unlock()
			meta.Ran = b.ranLocked()
			return meta
		}, b)
	})
	if err != nil {
		m.records.release(lease, false)
		return SavedSnapshot{}, b.snapshotError(ctx, op, err)
	}
	saved := savedSnapshot(&snapshot.Record{ID: lease.ID(), Meta: lease.Meta(), Bytes: lease.Bytes()})
	m.records.release(lease, true)
	return saved, nil
}

func (b *Box) snapshotError(ctx context.Context, op string, err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	hint := "Delete snapshots that are no longer needed with delete_snapshot."
	full, _ := errors.AsType[*snapshot.FullError](err)
	size := ""
	if full != nil && full.Need >= 1<<20 {
		size = fmt.Sprintf(", and this one takes about %d MB", full.Need>>20)
		if full.Need > full.Max && full.Limit != snapshot.LimitStore {
			hint = "Deleting others does not help: first remove files or variables that the box does not need."
		}
	}
	switch {
	case ctx.Err() != nil:
		return b.cancelled(op, context.Cause(ctx))
	case errors.Is(err, engine.ErrGone): // the box ended while it was written
		return b.goneNow(op, err)
	case full != nil && full.Limit == snapshot.LimitOwner:
		e := b.error(CodeLimit, op, fmt.Sprintf("Snapshot disk limit per user exceeded: your snapshots may take %d MB together", full.Max>>20)+size, hint, nil)
		e.Context["limit"] = "snapshot_disk_per_owner"
		return e
	case full != nil && full.Limit == snapshot.LimitSaved:
		e := b.error(CodeLimit, op, fmt.Sprintf("Snapshot disk limit exceeded: the snapshots of all users may take %d MB together; the rest of the disk is for hibernated boxes", full.Max>>20)+size,
			hint+" The operator can raise --snapshot-disk-mb.", nil)
		e.Context["limit"] = "snapshot_disk"
		return e
	case errors.Is(err, snapshot.ErrFull), errors.Is(err, engine.ErrExhausted):
		e := b.error(CodeLimit, op, "The disk has no room for the snapshot", hint, err)
		e.Context["limit"] = "disk"
		return e
	}
	return b.error(CodeInternal, op, "The snapshot was not written", "", err)
}

// Snapshots lists what an owner keeps, the newest first.
func (m *Manager) Snapshots(owner Owner) ([]SavedSnapshot, error) {
	const op = "list snapshots"
	if !m.hibernates() {
		return nil, unsupported(op)
	}
	records, err := m.records.saved(op, owner)
	if err != nil {
		return nil, err
	}
	list := make([]SavedSnapshot, 0, len(records))
	for i := range records {
		list = append(list, savedSnapshot(&records[i]))
	}
	return list, nil
}

// DeleteSnapshot removes a saved snapshot. Boxes that came from it live on.
//
// Errors: CodeNotFound, CodeInvalid (several have the name), CodeBusy (a box is just being made
// from it), CodeUnsupported.
func (m *Manager) DeleteSnapshot(owner Owner, id string) error {
	const op = "delete snapshot"
	if !m.hibernates() {
		return unsupported(op)
	}
	r, err := m.records.findSaved(op, owner, id)
	if err != nil {
		return err
	}
	switch err := m.parts.Snapshots.Delete(r.ID); {
	case errors.Is(err, snapshot.ErrNotFound):
		return snapshotNotFound(op, id)
	case errors.Is(err, snapshot.ErrLeased):
		return &Error{Code: CodeBusy, Op: op, Msg: "Snapshot " + id + " is in use: a box is being made from it", Hint: "Delete it again in a moment.", Context: map[string]string{"snapshot_id": id}}
	case err != nil:
		return &Error{Code: CodeInternal, Op: op, Msg: "Failed to delete snapshot " + id, Err: err}
	}
	return nil
}

// RestoreOptions says where the state of a snapshot goes: into the box Into (id or,
// for a context, unique name), whose own state is given up for it; or, if that is
// empty, into a new box.
type RestoreOptions struct {
	Into        string
	ID          string // of a new session; empty: one of ours
	Name        string // of a new context; empty: the snapshot's, if it has one
	Description string // of a new context; empty: the snapshot's
}

// Restore makes a box of a saved snapshot of the same kind. A box that is rolled back keeps
// its id, name and description, and is unharmed if the snapshot cannot be restored. It
// waits for calls under way and refuses new ones. Its new flavor has to fit into the
// owner's limits, and both machines into the memory of all boxes until the old one is freed.
//
// Errors: CodeNotFound (snapshot or box), CodeInvalid (the snapshot is of the
// other kind, or several have the name), CodeUnsupported, CodeBusy (the box is being rolled back already), else as
// Session.
func (m *Manager) Restore(ctx context.Context, owner Owner, kind Kind, id string, opts RestoreOptions) (*Box, error) {
	op := "restore " + string(kind)
	if !m.hibernates() {
		return nil, unsupported(op)
	}
	if err := checkTexts(op, "context", opts.Name, opts.Description); err != nil {
		return nil, err
	}
	r, err := m.records.findSaved(op, owner, id)
	if err != nil {
		return nil, err
	}
	if Kind(r.Kind) != kind {
		return nil, &Error{
			Code: CodeInvalid, Op: op, Msg: fmt.Sprintf("Snapshot %s is of a %s, not of a %s", id, r.Kind, kind),
			Hint: fmt.Sprintf("Use restore_%s.", r.Kind), Context: map[string]string{"field": "snapshot_id"},
		}
	}
	// The room that is made for the box must not be that of the snapshot. After an error, the start
	// finds the reason.
	if _, _, release, err := m.parts.Snapshots.Read(r.ID); err == nil {
		defer release()
	}
	sp := spec{
		interpreter: Interpreter(r.Interpreter), template: r.Template, flavor: Flavor(r.Flavor), limits: r.Limits,
		name: opts.Name, desc: opts.Description, origin: origin{snapshot: r.ID, ran: r.Ran},
	}
	if opts.Into != "" {
		return m.rollBack(ctx, op, key{owner, kind, opts.Into}, sp)
	}
	sp.key = newContextKey(owner)
	if kind == KindSession {
		sp.key, sp.chosen = key{owner, kind, opts.ID}, opts.ID != ""
		if opts.ID == "" {
			sp.key.id = uuid.NewString()
		} else if err := checkID(op, opts.ID); err != nil {
			return nil, err
		} else if err := m.unused(op, sp.key); err != nil {
			return nil, err
		}
	} else {
		if sp.name == "" {
			sp.name = r.Name
		}
		if sp.desc == "" {
			sp.desc = r.Description
		}
	}
	b, hold, err := m.create(ctx, op, sp)
	hold.Release()
	return b, err
}

func savedSnapshot(r *snapshot.Record) SavedSnapshot {
	t := Interpreter(r.Interpreter)
	if r.Aside != "" { // a record of a box
		r.Created, r.Description = r.Written, "Set aside: "+r.Aside
	}
	return SavedSnapshot{
		ID: r.ID, Name: r.Name, Description: r.Description, Kind: Kind(r.Kind), BoxID: r.BoxID,
		Interpreter: t, Language: t.Language(), Flavor: Flavor(r.Flavor), Created: r.Created, Bytes: r.Bytes, Aside: r.Aside,
	}
}

func snapshotNotFound(op, id string) error {
	return &Error{
		Code: CodeNotFound, Op: op, Msg: "Snapshot not found: " + clip(id, maxID), Hint: "List the snapshots with list_snapshots.",
		Context: map[string]string{"snapshot_id": clip(id, maxID)},
	}
}

// ambiguousSnapshot is the error for a name that several snapshots have, the newest first.
func ambiguousSnapshot(op, name string, matching []*snapshot.Record) error {
	const shown = 3
	var ids []string
	for _, r := range matching[:min(len(matching), shown)] {
		ids = append(ids, fmt.Sprintf("%s of %s", r.ID, r.Created.UTC().Format(time.RFC3339)))
	}
	if len(matching) > shown {
		ids = append(ids, "and older ones")
	}
	return &Error{
		Code: CodeInvalid, Op: op, Msg: fmt.Sprintf("Ambiguous snapshot name: %d snapshots are named '%s'", len(matching), clip(name, maxName)),
		Hint: "Use the snapshot_id: " + strings.Join(ids, ", ") + ".", Context: map[string]string{"field": "snapshot_id"},
	}
}

// saved lists an owner's saved snapshots, and the earlier states of boxes that were
// set aside.
func (recs *records) saved(op string, owner Owner) ([]snapshot.Record, error) {
	found, err := recs.listed(op, func(meta *snapshot.Meta) bool {
		return (meta.Purpose == snapshot.Saved || meta.Aside != "") && meta.Owner == string(owner) && !meta.Written.IsZero()
	})
	recs.saveMu.Lock()
	defer recs.saveMu.Unlock()
	return slices.DeleteFunc(found, func(r snapshot.Record) bool { return recs.hidden[r.ID] }), err
}

// beginSave counts a snapshot that an owner begins to save, until end is called. It returns
// an error if max snapshots of the owner are saved or being saved.
func (recs *records) beginSave(op string, owner Owner, max int) (end func(), err error) {
	recs.saveMu.Lock()
	if recs.saving == nil {
		recs.saving = make(map[Owner]int)
	}
	before := recs.saving[owner]
	recs.saving[owner]++
	recs.saveMu.Unlock()
	end = func() {
		recs.saveMu.Lock()
		defer recs.saveMu.Unlock()
		if recs.saving[owner]--; recs.saving[owner] == 0 {
			delete(recs.saving, owner)
		}
	}
	n := before
	found, err := recs.saved(op, owner)
	if err != nil {
		end()
		return nil, err
	}
	for _, r := range found {
		if r.Aside == "" {
			n++
		}
	}
	if n < max {
		return end, nil
	}
	end()
	return nil, &Error{
		Code: CodeLimit, Op: op, Msg: fmt.Sprintf("Snapshots limit exceeded: %d >= %d", n, max),
		Hint: "Delete snapshots that are no longer needed with delete_snapshot.", Context: map[string]string{"limit": "snapshots"},
	}
}

// findSaved finds a saved snapshot of an owner by its id or its unique name. The error is
// CodeNotFound if there is none, and CodeInvalid if several have the name.
func (recs *records) findSaved(op string, owner Owner, id string) (*snapshot.Record, error) {
	var matching []*snapshot.Record
	found, err := recs.saved(op, owner)
	if err != nil {
		return nil, err
	}
	for i := range found {
		switch r := &found[i]; {
		case r.ID == id:
			return r, nil
		case r.Name == id && id != "":
			matching = append(matching, r)
		}
	}
	switch len(matching) {
	case 0:
		return nil, snapshotNotFound(op, id)
	case 1:
		return matching[0], nil
	}
	return nil, ambiguousSnapshot(op, id, matching)
}
