package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/box/pool"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/box/template"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// Source says how a box came into being. It is a closed set: a metric label.
type Source string

// The closed set of sources.
const (
	SourceWarm     Source = "warm"     // it stood ready in the pool
	SourceCold     Source = "cold"     // restored from the template
	SourceBoot     Source = "boot"     // booted: there is no template yet
	SourceWoken    Source = "woken"    // it was hibernated
	SourceFork     Source = "fork"     // a copy of a living box
	SourceSnapshot Source = "snapshot" // from a kept snapshot
)

// origin is what a box is made from; the zero value is the pool, else the
// template, else a boot. At most one of claim, parent and kept is set.
type origin struct {
	claim  *snapshot.Lease // its own record: it is woken
	stale  bool            // the box of that record went on after it was written
	parent *Box            // it is a copy; held until the start has ended
	saved  string          // the id of a kept snapshot's record
	// rollBack says that the machine of the kept snapshot takes the place of
	// another, so that only its whole state will do.
	rollBack bool
	ran      bool // code had run in the interpreter of what it is made from
}

// make makes the machine of a box.
func (m *Manager) make(ctx context.Context, s *Box) (*machine.Machine, Source, error) {
	switch o := &s.origin; {
	case o.claim != nil:
		return m.wake(ctx, s)
	case o.parent != nil:
		return m.copy(ctx, s)
	case o.saved != "":
		return m.restoreSaved(ctx, s)
	}
	return m.makeNew(ctx, s)
}

// makeNew makes the machine of a box that comes from nowhere.
func (m *Manager) makeNew(ctx context.Context, s *Box) (*machine.Machine, Source, error) {
	if m.pool != nil {
		if mach := m.pool.Take(ctx, s.class()); mach != nil {
			return mach, SourceWarm, nil
		}
	}
	mach, source, err := m.fresh(ctx, s.class(), s.guestID)
	if err == nil && source == SourceBoot && s.key.kind == KindContext {
		// A context's interpreter is proved before its id is told.
		if err = mach.Start(ctx, s.template.Language(), nil); err != nil {
			m.discard(mach)
			mach = nil
		}
	}
	return mach, source, err
}

// fresh makes a machine from the template or, as long as there is none, by a
// boot; the template is built meanwhile.
func (m *Manager) fresh(ctx context.Context, c pool.Class, id string) (*machine.Machine, Source, error) {
	if m.parts.Templates != nil {
		want := m.want(c)
		t, ok := m.parts.Templates.Find(want)
		if ok {
			mach, err := m.parts.Templates.Restore(ctx, t, id)
			if err == nil || ctx.Err() != nil || !errors.Is(err, engine.ErrInvalid) {
				return mach, SourceCold, err
			}
			m.log.Warn("template not usable, booting instead", logkey.Template, c.Template, logkey.Flavor, c.Flavor, logkey.Error, err)
		}
		m.build(c)
	}
	mach, err := m.parts.Machines.Boot(ctx, id, Flavor(c.Flavor).Limits())
	return mach, SourceBoot, err
}

// copy makes a machine that goes on where the parent of s is now.
// One whose memory cannot be restored, because files that the parent has mapped
// have changed on the host, begins with the parent's files.
func (m *Manager) copy(ctx context.Context, s *Box) (mach *machine.Machine, source Source, err error) {
	dir, err := os.MkdirTemp(m.parts.Scratch, "fork-")
	if err != nil {
		return nil, SourceFork, fmt.Errorf("make room for a copy: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	memory := filepath.Join(dir, "memory")
	if err := os.Mkdir(memory, 0o700); err != nil {
		return nil, SourceFork, fmt.Errorf("make room for a copy: %w", err)
	}
	defer func() { err = errors.Join(err, m.parts.Machines.RemoveSnapshot(m.base, memory)) }()
	var maker *machine.Maker
	if err := s.origin.parent.still(ctx, "fork", func(ctx context.Context, parent *machine.Machine) error {
		m.mu.Lock()
		s.origin.ran = s.origin.parent.ranLocked()
		maker = s.origin.parent.maker
		m.mu.Unlock()
		return parent.Snapshot(ctx, memory)
	}); err != nil {
		return nil, SourceFork, err
	}
	mach, err = maker.Restore(ctx, s.guestID, s.flavor.Limits(), memory, true)
	if unusable(err) {
		return m.copyFiles(ctx, s, dir, err)
	}
	if err == nil {
		m.setMaker(s, maker)
	}
	return mach, SourceFork, err
}

// discard ends a machine that nobody wants.
func (m *Manager) discard(mach *machine.Machine) {
	ctx, cancel := context.WithTimeout(context.Background(), destroyTimeout)
	defer cancel()
	if err := mach.Close(ctx); err != nil {
		// Nothing here can do more; the engine goes on with it.
		m.log.Error("box was not freed in time", logkey.Guest, mach.ID, logkey.Error, err)
	}
}

func (s *Box) class() pool.Class {
	return pool.Class{Template: string(s.template), Flavor: string(s.flavor)}
}

// want is the template of a class.
func (m *Manager) want(c pool.Class) template.Spec {
	w := template.Spec{
		Name: c.Template, Language: Template(c.Template).Language(), Flavor: c.Flavor, Limits: Flavor(c.Flavor).Limits(),
	}
	if w.Language == Python {
		w.Preload = m.cfg().Preload
	}
	return w
}
