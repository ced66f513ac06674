package box

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// SavedSnapshot describes a snapshot that an owner keeps.
type SavedSnapshot struct {
	ID          string // of the snapshot
	Name        string // may be empty
	Description string
	Kind        Kind   // of the box
	BoxID       string // of the box that it was taken of
	Template    Template
	Language    string
	Flavor      Flavor
	Created     time.Time
	Bytes       int64 // on disk
	// Aside says why it was kept though nobody asked for it: it is the earlier state
	// of a box whose memory could not be restored. It goes when it is too old or
	// room is needed. "": it was asked for.
	Aside string
}

// SnapshotOptions describes a snapshot; all fields may be empty.
type SnapshotOptions struct{ Name, Description string }

// SaveSnapshot writes the state of an owner's box to disk, to go back to or to start
// others from, until it is deleted. It waits for calls that are under way; the
// box then stands still for a moment and goes on. A hibernated box is woken.
//
// Errors: CodeNotFound, CodeLimit (Config.MaxSnapshots, or the disk is full),
// CodeUnsupported, else as Session.
func (m *Manager) SaveSnapshot(ctx context.Context, owner Owner, kind Kind, id string, want SnapshotOptions) (SavedSnapshot, error) {
	op := "snapshot " + string(kind)
	if !m.hibernates() {
		return SavedSnapshot{}, unsupported(op)
	}
	if err := checkTexts(op, "snapshot", want.Name, want.Description); err != nil {
		return SavedSnapshot{}, err
	}
	own := slices.DeleteFunc(m.savedRecords(owner), func(r snapshot.Record) bool { return r.Aside != "" })
	if n := len(own); n >= m.cfg().MaxSnapshots {
		return SavedSnapshot{}, &Error{
			Code: CodeLimit, Op: op, Msg: fmt.Sprintf("Snapshots limit exceeded: %d >= %d", n, m.cfg().MaxSnapshots),
			Hint: "Delete snapshots that are no longer needed with delete_snapshot.", Context: map[string]string{"limit": "snapshots"},
		}
	}
	s, acq, err := m.existing(ctx, op, key{owner, kind, id})
	if err != nil {
		return SavedSnapshot{}, err
	}
	defer acq.Release()
	meta := snapshot.Meta{
		Class: snapshot.Kept, Owner: string(owner), Kind: string(kind), BoxID: s.key.id, Name: want.Name, Description: want.Description,
		Template: string(s.template), Flavor: string(s.flavor), Created: m.now(), Used: m.now(),
	}
	claim, err := m.parts.Snapshots.Create(meta)
	if err != nil {
		return SavedSnapshot{}, s.snapshotError(ctx, op, err)
	}
	if err := m.writes.Acquire(ctx, 1); err != nil {
		m.releaseRecord(claim, false)
		return SavedSnapshot{}, s.cancelled(op, context.Cause(ctx))
	}
	err = s.still(ctx, op, func(ctx context.Context, _ *machine.Machine) error {
		m.mu.Lock()
		meta.Ran = s.ranLocked()
		m.mu.Unlock()
		return m.writeTo(ctx, claim, meta, s)
	})
	m.writes.Release(1)
	if err != nil {
		m.releaseRecord(claim, false)
		return SavedSnapshot{}, s.snapshotError(ctx, op, err)
	}
	id = claim.ID()
	m.releaseRecord(claim, true)
	r := m.savedRecord(owner, id)
	if r == nil { // deleted by another process meanwhile
		return SavedSnapshot{}, snapshotNotFound(op, id)
	}
	return savedSnapshot(r), nil
}

func (s *Box) snapshotError(ctx context.Context, op string, err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	switch {
	case ctx.Err() != nil:
		return s.cancelled(op, context.Cause(ctx))
	case errors.Is(err, snapshot.ErrFull), errors.Is(err, engine.ErrExhausted):
		e := s.error(CodeLimit, op, "The disk has no room for the snapshot", "Delete snapshots that are no longer needed with delete_snapshot.", err)
		e.Context["limit"] = "disk"
		return e
	}
	return s.error(CodeInternal, op, "The snapshot was not written", "", err)
}

// Snapshots lists what an owner keeps, the newest first.
func (m *Manager) Snapshots(owner Owner) ([]SavedSnapshot, error) {
	if !m.hibernates() {
		return nil, unsupported("list snapshots")
	}
	records := m.savedRecords(owner)
	list := make([]SavedSnapshot, 0, len(records))
	for i := range records {
		list = append(list, savedSnapshot(&records[i]))
	}
	return list, nil
}

// DeleteSnapshot removes a kept snapshot. Boxes that came from it live on.
//
// Errors: CodeNotFound, CodeBusy (a box is just being made from it), CodeUnsupported.
func (m *Manager) DeleteSnapshot(owner Owner, id string) error {
	const op = "delete snapshot"
	if !m.hibernates() {
		return unsupported(op)
	}
	r := m.savedRecord(owner, id)
	if r == nil {
		return snapshotNotFound(op, id)
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

// Restore makes a box of a kept snapshot of the same kind. One that is rolled
// back keeps its id, name and description; it waits for calls under way, and is
// unharmed if the snapshot cannot be restored.
//
// Errors: CodeNotFound (snapshot or box), CodeInvalid (the snapshot is of the
// other kind), CodeUnsupported, else as Session.
func (m *Manager) Restore(ctx context.Context, owner Owner, kind Kind, id string, want RestoreOptions) (*Box, error) {
	op := "restore " + string(kind)
	if !m.hibernates() {
		return nil, unsupported(op)
	}
	if err := checkTexts(op, "context", want.Name, want.Description); err != nil {
		return nil, err
	}
	r := m.savedRecord(owner, id)
	if r == nil {
		return nil, snapshotNotFound(op, id)
	}
	if Kind(r.Kind) != kind {
		return nil, &Error{
			Code: CodeInvalid, Op: op, Msg: fmt.Sprintf("Snapshot %s is of a %s, not of a %s", id, r.Kind, kind),
			Hint: fmt.Sprintf("Use restore_%s.", r.Kind), Context: map[string]string{"field": "snapshot_id"},
		}
	}
	s := &Box{
		template: Template(r.Template), flavor: Flavor(r.Flavor), name: want.Name, desc: want.Description, origin: origin{saved: r.ID, ran: r.Ran},
	}
	if want.Into != "" {
		return m.rollBack(ctx, op, key{owner, kind, want.Into}, s)
	}
	s.key = newContextKey(owner)
	if kind == KindSession {
		s.key, s.chosen = key{owner, kind, want.ID}, want.ID != ""
		if want.ID == "" {
			s.key.id = uuid.NewString()
		} else if err := checkID(op, want.ID); err != nil {
			return nil, err
		} else if err := m.unused(op, s.key); err != nil {
			return nil, err
		}
	} else {
		if s.name == "" {
			s.name = r.Name
		}
		if s.desc == "" {
			s.desc = r.Description
		}
	}
	s, held, err := m.admit(ctx, op, s)
	if err != nil {
		return nil, err
	}
	s, held, err = m.await(ctx, op, s, held)
	held.Release()
	return s, err
}

// rollBack puts s in the place of the box of k.
func (m *Manager) rollBack(ctx context.Context, op string, k key, s *Box) (*Box, error) {
	old, acq, err := m.existing(ctx, op, k)
	if err != nil {
		return nil, err
	}
	defer acq.Release()
	s.key, s.name, s.desc, s.created = old.key, old.name, old.desc, old.created
	s.origin.rollBack = true
	m.prepare(s)
	mach, source, err := m.bootWhenFree(ctx, s, nil)
	if err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		return nil, m.startErrorLocked(op, s, err)
	}
	claim := m.record(s)
	if err := m.swap(ctx, op, acq, old, s, func() { m.publishLocked(s, mach, source, claim) }); err != nil {
		m.discard(mach)
		if claim != nil {
			m.releaseRecord(claim, false)
		}
		return nil, err
	}
	return s, nil
}

// swap ends old when no call is under way in it and has publish put s in its
// place.
func (m *Manager) swap(ctx context.Context, op string, acq Lease, old, s *Box, publish func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	acq.pin.releaseLocked()
	if err := m.waitCallsLocked(ctx, op, old); err != nil {
		return err
	}
	if old.tomb != nil {
		return old.gone(op, old.tomb)
	}
	if err := m.openLocked(op); err != nil {
		return err
	}
	m.terminateLocked(old, ReasonRolledBack, "")
	m.boxes[s.key] = s
	s.touchLocked()
	publish()
	return nil
}

// restoreSaved makes a machine of a kept snapshot. If its memory cannot be
// restored, a new box gets its files; a box that is rolled back stays as it is.
func (m *Manager) restoreSaved(ctx context.Context, s *Box) (*machine.Machine, Source, error) {
	dir, _, release, err := m.parts.Snapshots.Read(s.origin.saved)
	switch {
	case errors.Is(err, snapshot.ErrNotFound):
		return nil, SourceSnapshot, snapshotNotFound("restore", s.origin.saved)
	case err != nil:
		return nil, SourceSnapshot, fmt.Errorf("read snapshot: %w", err)
	}
	defer release()
	mach, err := m.restore(ctx, s, dir, true)
	if !unusable(err) {
		return mach, SourceSnapshot, err
	}
	_, noFiles := readHomeInfo(dir)
	switch {
	case noFiles != nil:
		return nil, SourceSnapshot, fmt.Errorf("the memory cannot be restored, and %w: %w", noFiles, err)
	case s.origin.rollBack:
		return nil, SourceSnapshot, fmt.Errorf("the memory cannot be restored; restore it as a new %s to get its files: %w", s.key.kind, err)
	}
	mach, source, r, err := m.freshWithFiles(ctx, s, dir, err)
	if err == nil {
		m.setRescue(s, r, nil)
	}
	return mach, source, err
}

func (m *Manager) savedRecords(owner Owner) []snapshot.Record {
	records, err := m.parts.Snapshots.List(func(meta *snapshot.Meta) bool {
		return (meta.Class == snapshot.Kept || meta.Aside != "") && meta.Owner == string(owner) && !meta.Saved.IsZero()
	})
	if err != nil {
		m.log.Warn("kept snapshots not listed", logkey.Error, err)
	}
	return records
}

// savedRecord finds a kept snapshot of an owner by its id or its unique name.
func (m *Manager) savedRecord(owner Owner, id string) *snapshot.Record {
	var named *snapshot.Record
	names := 0
	records := m.savedRecords(owner)
	for i := range records {
		switch r := &records[i]; {
		case r.ID == id:
			return r
		case r.Name == id && id != "":
			named = r
			names++
		}
	}
	if names == 1 {
		return named
	}
	return nil
}

func savedSnapshot(r *snapshot.Record) SavedSnapshot {
	t := Template(r.Template)
	if r.Aside != "" { // a record of a box
		r.Created, r.Description = r.Saved, "Set aside: "+r.Aside
	}
	return SavedSnapshot{
		ID: r.ID, Name: r.Name, Description: r.Description, Kind: Kind(r.Kind), BoxID: r.BoxID,
		Template: t, Language: t.Language(), Flavor: Flavor(r.Flavor), Created: r.Created, Bytes: r.Bytes, Aside: r.Aside,
	}
}

func snapshotNotFound(op, id string) error {
	return &Error{
		Code: CodeNotFound, Op: op, Msg: "Snapshot not found: " + clip(id, maxID), Hint: "List the snapshots with list_snapshots.",
		Context: map[string]string{"snapshot_id": clip(id, maxID)},
	}
}
