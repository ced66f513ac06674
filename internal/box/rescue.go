package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/cleantext"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// Rescue describes a box whose memory could not be restored, and which continues with
// its files in a new machine.
type Rescue struct {
	Why        string    `json:"why"`                // the memory could not be restored; a clause without a period
	Files      bool      `json:"files,omitempty"`    // the files of the home directory are there
	NoFiles    string    `json:"no_files,omitempty"` // why they are not
	At         time.Time `json:"at,omitzero"`        // when the files were stored
	Omitted    int       `json:"omitted,omitempty"`  // files that had not been stored: unreadable, or too large
	Examples   []string  `json:"examples,omitempty"` // some of their names
	SnapshotID string    `json:"aside,omitempty"`    // the id of the snapshot that keeps the old state; "": none does
	Remedy     string    `json:"remedy,omitempty"`   // how to restore that one, without a period at its end; "": with what it was made with
	Damaged    bool      `json:"damaged,omitempty"`  // nothing restores that one
}

// unusable reports whether this server can never restore a snapshot as it is. Any other
// error may be transient.
func unusable(err error) bool {
	remote, ok := errors.AsType[*protocol.Error](err)
	return errors.Is(err, engine.ErrInvalid) || ok && remote.Code == protocol.CodeVersion
}

// publicError is an error with a text for clients, without what helps only the operator: paths
// of the host and words of an engine.
type publicError interface {
	error
	// Public is a clause.
	Public() string
}

// mismatch returns a readable reason why a snapshot cannot be restored.
func mismatch(err error) string {
	if missing, ok := errors.AsType[*MissingImageError](err); ok {
		return missing.What
	}
	if public, ok := errors.AsType[publicError](err); ok {
		return public.Public()
	}
	text := withoutPath(err)
	if strings.HasPrefix(text, "restore guest ") { // the engine's own words follow the id
		_, text, _ = strings.Cut(text, ": ")
	}
	text = strings.TrimSuffix(text, ": "+engine.ErrInvalid.Error())
	return strings.TrimSpace(clip(cleantext.Clean(text), 400))
}

// rescue makes a fresh machine with the files of a record whose memory cannot be
// restored. The box gets a record of its own; the old one is set aside, with the
// memory that the version or image that wrote it can still restore.
func (f *machineFactory) rescue(ctx context.Context, b *Box, lease *snapshot.Lease, cause error) (startedMachine, error) {
	made, err := f.freshWithFiles(ctx, b, lease.Dir(), cause)
	made.lease = lease
	if err != nil {
		return made, err
	}
	info, err := readHomeInfo(lease.Dir())
	if err == nil && info.Only != "" { // there is no memory to keep
		meta := lease.Meta()
		meta.Stale = true
		return made, lease.Update(meta)
	}
	made.lease = f.recordFiles(ctx, b, lease.Dir(), made.rescued)
	meta := lease.Meta()
	meta.Aside = clip(made.rescued.Why, 1000)
	if err := lease.Update(meta); err != nil {
		f.log.Warn("record not set aside", logkey.Record, lease.ID(), logkey.Error, err)
	} else {
		made.rescued.SnapshotID = lease.ID()
	}
	f.records.release(lease, true)
	f.log.Warn("memory of a hibernated box not restored; only its files are", logkey.Guest, made.machine.ID, logkey.Kind, b.key.kind, logkey.Box, b.key.id,
		logkey.Files, made.rescued.Files, logkey.Kept, made.rescued.SnapshotID, logkey.Error, cause)
	return made, nil
}

// freshWithFiles makes a machine like that of a new box, with the files stored in
// dir, if there are any.
func (f *machineFactory) freshWithFiles(ctx context.Context, b *Box, dir string, cause error) (startedMachine, error) {
	made, err := f.makeNew(ctx, b)
	if err != nil {
		return made, err
	}
	r := &Rescue{Why: mismatch(cause), Damaged: errors.Is(cause, engine.ErrDamaged)}
	if frozen, ok := errors.AsType[*frozenError](cause); ok {
		r.Remedy = frozen.remedy(b.key.kind)
	}
	info, file, err := openHome(dir)
	if err == nil {
		err = made.machine.Agent.Unpack(ctx, file)
		file.Close()
		r.At, r.Omitted, r.Examples = info.At, info.Omitted, info.Examples
	}
	switch {
	case err == nil:
		r.Files = true
	case ctx.Err() != nil:
		return made, context.Cause(ctx)
	default:
		r.NoFiles = reasonOf(err)
		f.log.Warn("files of a box not restored", logkey.Guest, made.machine.ID, logkey.Kind, b.key.kind, logkey.Box, b.key.id, logkey.Error, err)
	}
	made.rescued = r
	return made, nil
}

// recordFiles creates the record of a box that continues with the files stored in dir;
// nil if that fails. Until the box is written for the first time, the files are
// its data: a server that is killed loses no more than before.
func (f *machineFactory) recordFiles(ctx context.Context, b *Box, dir string, r *Rescue) *snapshot.Lease {
	lease := f.records.create(b)
	if lease == nil || !r.Files {
		return lease
	}
	err := lease.Write(ctx, lease.Meta(), 0, func(_ context.Context, to string) error {
		info, err := readHomeInfo(dir)
		if err != nil {
			return err
		}
		info.Only = "its memory could not be restored earlier, and it had not been written to disk since"
		return linkHome(dir, to, info)
	})
	if err != nil {
		f.log.Warn("files of a box not recorded", logkey.Record, lease.ID(), logkey.Error, err)
	}
	return lease
}

// forkFiles makes a machine with the files of the parent of b, whose memory could
// not be copied.
func (f *machineFactory) forkFiles(ctx context.Context, b *Box, dir string, cause error) (startedMachine, error) {
	none := startedMachine{source: SourceFork}
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		return none, fmt.Errorf("make room for a copy: %w", err)
	}
	parent := b.origin.parent
	if err := parent.exclusively(ctx, "fork", func(ctx context.Context, _ *machine.Machine) error {
		return f.records.saveHome(ctx, parent, home)
	}); err != nil {
		return none, errors.Join(cause, err)
	}
	leave, err := f.startSlot(ctx, b)
	if err != nil {
		return none, err
	}
	defer leave()
	return f.freshWithFiles(ctx, b, home, cause)
}

// Rescued describes the state that a box lost when it was woken, forked or restored; nil
// if it lost none.
func (b *Box) Rescued() *Rescue {
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	return b.rescued
}

// snapshotTools follows the name of a tool for snapshots in texts: most servers do not offer it.
const snapshotTools = "(toolset snapshots)"

// Explain names the lost and the kept state, in sentences.
func (r *Rescue) Explain() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Variables and running processes are gone: %s.", r.Why)
	switch {
	case r.Files:
		fmt.Fprintf(&b, " The files of the home directory are there as of %s.", r.At.UTC().Format(time.RFC3339))
		if r.Omitted > 0 {
			fmt.Fprintf(&b, " Files that were too large or unreadable are missing: %d (%s).", r.Omitted, strings.Join(r.Examples, ", "))
		}
	default:
		fmt.Fprintf(&b, " Files could not be restored: %s.", r.NoFiles)
	}
	switch {
	case r.SnapshotID == "":
	case r.Damaged:
		fmt.Fprintf(&b, " What is left of the old state is kept as snapshot %s for the operator; delete_snapshot %s deletes it.", r.SnapshotID, snapshotTools)
	case r.Remedy != "":
		fmt.Fprintf(&b, " The old state is kept as snapshot %s: %s. delete_snapshot %s deletes it.", r.SnapshotID, r.Remedy, snapshotTools)
	default:
		fmt.Fprintf(&b, " The old state is kept as snapshot %s; it can be restored with what it was made with, and deleted with delete_snapshot %s.", r.SnapshotID, snapshotTools)
	}
	return b.String()
}

// interpreters returns the paths of the interpreters that the box's image has, by language.
// The caller does not change them.
func (b *Box) interpreters() map[string]string {
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	return b.maker.Interpreters
}
