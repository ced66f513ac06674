package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/box/fairslots"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/box/pool"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/box/template"
	"github.com/glovebox-dev/glovebox/internal/fleet"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// Source says how a box came into being. It is a closed set: a metric label.
type Source string

// The closed set of sources.
const (
	SourceWarm     Source = "warm"     // taken from the pool
	SourceCold     Source = "cold"     // restored from the template
	SourceBoot     Source = "boot"     // booted: there is no template yet
	SourceWoken    Source = "woken"    // restored from its own record
	SourceFork     Source = "fork"     // a copy of a live box
	SourceSnapshot Source = "snapshot" // restored from a saved snapshot
	SourceAdopted  Source = "adopted"  // adopted from another server, which is gone
)

// origin is what a box is made from; the zero value means the pool, else the
// template, else a boot. At most one of record, parent, snapshot, template and adopted is set.
type origin struct {
	record   *snapshot.Lease // its own record: it is woken
	stale    bool            // the box of that record continued after it was written
	inCall   bool            // calls were in flight when it was written
	restored bool            // a machine was made of that record before
	written  time.Time       // when the record was written
	report   *report         // the losses in that record; nil: none
	parent   *Box            // it is a fork of this one, which is pinned until the start has ended
	snapshot string          // the id of a saved snapshot
	template string          // the id of a named template
	adopted  *fleet.Guest    // it goes on, adopted from another server
	// rollBack says that the box takes the place of another, so that a snapshot
	// without its memory is not acceptable.
	rollBack bool
	ran      bool // code had run in the interpreter of what it is made from
}

// startedMachine is the result of the start of a box.
type startedMachine struct {
	machine *machine.Machine // nil if the start failed before there was one
	maker   *machine.Maker   // made the machine: the box's image
	source  Source
	lease   *snapshot.Lease // the box's; nil if it has none
	hasData bool            // the record has data; as of the last write
	written time.Time       // when they were written
	bytes   int64           // their size
	rescued *Rescue         // what the box could not bring along; nil: nothing is missing
	ran     bool            // code had run in its interpreter before it was made
	network *boxNetwork     // of machine
}

// noteData caches the state of the record, so that no one does disk I/O under a lock. Once b has
// the machine, evictions may drop the data.
func (s *startedMachine) noteData(b *Box) {
	if s.lease != nil {
		s.hasData, s.written, s.bytes = s.lease.Dir() != "", s.lease.Meta().Written, s.lease.Bytes()
		s.lease.AllowDrop(b.consentToDrop)
	}
}

// machineFactory makes the machines of boxes and of the pool.
type machineFactory struct {
	*env
	records      *records
	starts       *fairslots.Slots // for making boxes
	volumeChecks volumeChecks
	pool         *pool.Pool    // nil: none; set by start
	filling      chan struct{} // closed when the pool begins to fill

	mu      sync.Mutex
	closed  bool                // guarded by mu
	builds  map[pool.Class]bool // guarded by mu; templates that are being built
	unbuilt map[pool.Class]bool // guarded by mu; templates that could not be built the last time
}

// make makes the machine of a box, with a slot of starts. After an error, record is set if
// the box had one, and there is no machine but one that was adopted, which lives on.
func (f *machineFactory) make(ctx context.Context, b *Box) (made startedMachine, err error) {
	if err := f.prepareVolumes(ctx, b.key.owner); err != nil {
		return startedMachine{lease: b.origin.record}, err
	}
	if b.origin.parent != nil {
		made, err = f.fork(ctx, b)
	} else {
		made, err = f.makeInSlot(ctx, b)
	}
	if err == nil {
		err = f.openNetwork(ctx, b, &made)
	} else if made.maker != nil && ctx.Err() == nil && !errors.Is(err, hostdisk.ErrFull) && !isMissingImage(err) {
		err = f.volumeChecks.explain(ctx, err, made.maker.Volumes)
	}
	if err != nil && made.machine != nil && b.origin.adopted == nil {
		f.discardMachine(made)
		made.machine, made.network = nil, nil
	}
	return made, err
}

func (f *machineFactory) makeInSlot(ctx context.Context, b *Box) (startedMachine, error) {
	leave, err := f.startSlot(ctx, b)
	if err != nil {
		return startedMachine{lease: b.origin.record}, err
	}
	defer leave()
	switch o := &b.origin; {
	case o.record != nil:
		return f.wake(ctx, b)
	case o.snapshot != "":
		return f.restoreSaved(ctx, b)
	case o.template != "":
		return f.restoreNamed(ctx, b)
	case o.adopted != nil:
		return f.adopt(ctx, b)
	}
	return f.makeNew(ctx, b)
}

// startSlot waits for a slot to make a machine: more of them at once would only slow each
// other down. The caller must call release, which may be called again.
func (f *machineFactory) startSlot(ctx context.Context, b *Box) (release func(), err error) {
	b.life.countStarting(1)
	ended := sync.OnceFunc(func() { b.life.countStarting(-1) })
	leave, err := f.starts.Acquire(ctx, string(b.key.owner))
	if err != nil {
		ended()
		return func() {}, err
	}
	return func() { leave(); ended() }, nil
}

// makeNew makes the machine of a new box.
func (f *machineFactory) makeNew(ctx context.Context, b *Box) (made startedMachine, err error) {
	made.maker = f.makerFor(b.key.owner)
	if f.pool != nil {
		if made.machine, err = f.takeWarm(ctx, b.class()); err != nil || made.machine != nil {
			made.source = SourceWarm
			return made, err
		}
	}
	made.machine, made.source, err = f.fresh(ctx, b.class(), b.guestID, made.maker)
	err = f.explainMissing(err, made.maker, b.interpreter)
	if err == nil && made.source == SourceBoot && b.key.kind == KindContext {
		// A context's interpreter is verified before its id is given out.
		err = made.machine.Start(ctx, b.interpreter.Language(), nil)
	}
	return made, err
}

// fresh makes a machine of k, from the template or, as long as there is none, by a boot;
// the template is built meanwhile.
func (f *machineFactory) fresh(ctx context.Context, c pool.Class, id string, k *machine.Maker) (*machine.Machine, Source, error) {
	if err := f.volumeChecks.missing(ctx, k.Volumes, slotPatience); err != nil {
		return nil, SourceBoot, err
	}
	if f.parts.Templates != nil && f.parts.Machines.Interpreters[Interpreter(c.Interpreter).Language()] != "" {
		want := f.want(c)
		t, ok := f.parts.Templates.Find(want)
		if ok {
			mach, err := f.parts.Templates.RestoreWith(ctx, t, id, k.Volumes)
			if err == nil || ctx.Err() != nil || !errors.Is(err, engine.ErrInvalid) {
				return mach, SourceCold, err
			}
			f.log.Warn("template not usable, booting instead", logkey.Interpreter, c.Interpreter, logkey.Flavor, c.Flavor, logkey.Error, err)
		}
		f.build(c)
	}
	mach, err := k.Boot(ctx, id, Flavor(c.Flavor).Limits())
	return mach, SourceBoot, err
}

// fork makes a copy of the machine of the parent of b. If its memory cannot be
// restored, because files that the parent has mapped have changed on the host, the
// copy begins with the parent's files.
func (f *machineFactory) fork(ctx context.Context, b *Box) (made startedMachine, err error) {
	made.source = SourceFork
	leave := func() {}
	defer func() { leave() }()
	var dir, memory string
	defer func() { err = errors.Join(err, f.removeCopy(dir)) }()
	parent := b.origin.parent
	now := f.makerFor(b.key.owner) // the parent's volumes may have been frozen since
	if err := parent.exclusively(ctx, "fork", func(ctx context.Context, mach *machine.Machine) error {
		// Only now: no fork holds a slot while it waits for its owner's calls.
		var err error
		if leave, err = f.startSlot(ctx, b); err != nil {
			return err
		}
		parent.reg.mu.Lock()
		made.ran, made.maker = parent.ranLocked(), parent.maker.WithVolumes(now.Volumes)
		parent.reg.mu.Unlock()
		dir, memory, err = f.copyMachine(ctx, mach)
		if errors.Is(err, engine.ErrGone) {
			leave()
			err = parent.goneNow("fork", err)
		}
		return err
	}); err != nil {
		return made, err
	}
	made.machine, err = made.maker.Restore(ctx, b.guestID, b.flavor.Limits(), memory, true)
	if err = explainFrozen(f.explainMissing(err, made.maker, b.interpreter), made.maker.Volumes); unusable(err) {
		leave()
		return f.forkFiles(ctx, b, dir, err)
	}
	return made, err
}

// copyMachine writes a machine into the first scratch directory that has room for it. It
// returns the directory, which the caller removes with removeCopy also after an error,
// and the snapshot in it.
func (f *machineFactory) copyMachine(ctx context.Context, mach *machine.Machine) (dir, memory string, err error) {
	dirs := f.parts.Scratch
	if len(dirs) == 0 {
		dirs = []string{os.TempDir()}
	}
	for i, scratch := range dirs {
		if dir, err = os.MkdirTemp(scratch, "fork-"); err != nil {
			return "", "", fmt.Errorf("make room for a copy: %w", err)
		}
		memory = filepath.Join(dir, "memory")
		if err := os.Mkdir(memory, 0o700); err != nil {
			return dir, "", fmt.Errorf("make room for a copy: %w", err)
		}
		err = mach.Snapshot(ctx, memory)
		if !errors.Is(err, engine.ErrExhausted) || i == len(dirs)-1 {
			return dir, memory, err
		}
		if err := f.removeCopy(dir); err != nil {
			return "", "", err
		}
	}
	return "", "", nil // not reached
}

// removeCopy removes what copyMachine has made.
func (f *machineFactory) removeCopy(dir string) error {
	if dir == "" {
		return nil
	}
	return errors.Join(f.parts.Machines.RemoveSnapshot(f.base, filepath.Join(dir, "memory")), os.RemoveAll(dir))
}

// wake restores a box from its record. If its memory cannot be restored, the box goes
// on with its files.
func (f *machineFactory) wake(ctx context.Context, b *Box) (startedMachine, error) {
	lease := b.origin.record
	// If the box continued after it was written, or an earlier wake was abandoned, another
	// copy of it has run.
	made, err := f.restore(ctx, b, lease.Dir(), b.origin.stale || b.origin.restored)
	made.source, made.lease, made.ran = SourceWoken, lease, b.origin.ran
	if unusable(err) {
		return f.rescue(ctx, b, lease, err)
	}
	if errors.Is(err, hostdisk.ErrFull) || isMissingImage(err) || errors.As(err, new(*VolumeError)) {
		return made, err // nothing has run
	}
	meta := lease.Meta()
	meta.Restored = true // after another error, the copy may have run for a moment
	meta.Stale = meta.Stale || err == nil
	return made, errors.Join(err, lease.Update(meta))
}

// restore restores the snapshot of a box with the image and the agent that the box
// had.
func (f *machineFactory) restore(ctx context.Context, b *Box, dir string, copied bool) (made startedMachine, err error) {
	maker := f.makerFor(b.key.owner)
	if err := f.volumeChecks.missing(ctx, maker.Volumes, slotPatience); err != nil {
		return made, err
	}
	if made.maker, err = f.makerOf(dir, b.interpreter, maker); err != nil {
		return made, err
	}
	made.machine, err = made.maker.Restore(ctx, b.guestID, b.flavor.Limits(), dir, copied)
	return made, explainFrozen(f.explainMissing(err, made.maker, b.interpreter), made.maker.Volumes)
}

// restoreSaved makes a machine of a saved snapshot. If its memory cannot be restored,
// a new box gets its files; a box that is rolled back stays as it is.
func (f *machineFactory) restoreSaved(ctx context.Context, b *Box) (startedMachine, error) {
	none := startedMachine{source: SourceSnapshot}
	dir, _, release, err := f.parts.Snapshots.Read(b.origin.snapshot)
	switch {
	case errors.Is(err, snapshot.ErrNotFound):
		return none, snapshotNotFound("restore", b.origin.snapshot)
	case err != nil:
		return none, fmt.Errorf("read snapshot: %w", err)
	}
	defer release()
	made, err := f.restore(ctx, b, dir, true)
	made.source, made.ran = SourceSnapshot, b.origin.ran
	if !unusable(err) {
		return made, err
	}
	_, noFiles := readHomeInfo(dir)
	switch {
	case noFiles != nil:
		why := mismatch(err) + "; and " + reasonOf(noFiles)
		return none, &unrestorableError{why, "Restore it where there is what it was made with, the same image and version, or delete it with delete_snapshot.", err}
	case b.origin.rollBack:
		return none, &unrestorableError{mismatch(err), fmt.Sprintf("Restore it as a new %s to get its files.", b.key.kind), err}
	}
	return f.freshWithFiles(ctx, b, dir, err)
}

// makerOf returns what makes machines like that of a snapshot: with its image and
// its agent, if this host has them. maker has everything else.
func (f *machineFactory) makerOf(dir string, t Interpreter, maker *machine.Maker) (*machine.Maker, error) {
	if info, err := readHomeInfo(dir); err == nil && info.Only != "" {
		return nil, fmt.Errorf("%s: %w", info.Only, engine.ErrInvalid)
	}
	of, err := maker.InspectSnapshot(f.base, dir)
	if err != nil {
		return nil, err
	}
	if f.parts.Agents != nil {
		if agent, ok := f.parts.Agents(of.Agent); ok && agent.Path != maker.Agent.Path {
			maker = maker.WithAgent(agent)
		}
	}
	if of.RootKey == maker.Root.Key || f.parts.Images == nil {
		return maker, nil // its error names the difference
	}
	root, interpreters, err := f.parts.Images(of.RootKey, t.Language())
	switch {
	case isMissingImage(err):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w", err, engine.ErrInvalid)
	}
	return maker.WithImage(root, interpreters), nil
}

// restorable returns why the memory in a snapshot cannot be restored, as far as that
// shows without reading all of it.
func (f *machineFactory) restorable(dir string, t Interpreter, fl Flavor) error {
	maker, err := f.makerOf(dir, t, f.parts.Machines)
	if err != nil {
		return err
	}
	return maker.CheckSnapshot(f.base, fl.Limits(), dir)
}

func (b *Box) class() pool.Class {
	return pool.Class{Interpreter: string(b.interpreter), Flavor: string(b.flavor)}
}

// want is the template of a class.
func (f *machineFactory) want(c pool.Class) template.Spec {
	w := template.Spec{
		Name: c.Interpreter, Language: Interpreter(c.Interpreter).Language(), Flavor: c.Flavor, Limits: Flavor(c.Flavor).Limits(),
	}
	if w.Language == Python {
		w.Preload = f.cfg().Preload
	}
	return w
}
