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
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// Rescue describes a box whose memory could not be restored, and which goes on
// with its files in a fresh one.
type Rescue struct {
	Why      string    // the memory could not be restored; a clause without a period
	Files    bool      // the files of the home directory are there
	NoFiles  string    // why they are not
	At       time.Time // when the files were stored
	Omitted  int       // files that had not been stored: unreadable, or too large
	Examples []string  // some of their names
	Aside    string    // the id of the snapshot that keeps the old state; "": none does
}

// unusable reports whether a snapshot can never be restored by this server as it
// is. Any other error may be gone at the next try.
func unusable(err error) bool {
	we, ok := errors.AsType[*protocol.Error](err)
	return errors.Is(err, engine.ErrInvalid) || ok && we.Code == protocol.CodeVersion
}

// mismatch says for people why a snapshot cannot be restored.
func mismatch(err error) string {
	text := err.Error()
	if strings.HasPrefix(text, "restore guest ") { // the engine's own words follow the id
		_, text, _ = strings.Cut(text, ": ")
	}
	text = strings.TrimSuffix(text, ": "+engine.ErrInvalid.Error())
	return strings.TrimSpace(clip(clean(text), 400))
}

// wake restores the box of a record. If its memory cannot be restored, the box goes
// on with its files.
func (m *Manager) wake(ctx context.Context, s *Box) (*machine.Machine, Source, error) {
	claim := s.origin.claim
	// Of a box that went on after it was written, another copy has lived.
	mach, err := m.restore(ctx, s, claim.Dir(), s.origin.stale)
	switch {
	case err == nil:
		meta := claim.Meta()
		meta.Live = true
		return mach, SourceWoken, claim.Update(meta)
	case !unusable(err):
		return nil, SourceWoken, err
	}
	return m.rescue(ctx, s, claim, err)
}

// restore restores a snapshot of a box with the image and the agent that the box
// had.
func (m *Manager) restore(ctx context.Context, s *Box, dir string, copied bool) (*machine.Machine, error) {
	maker, err := m.makerOf(dir, s.template)
	if err != nil {
		return nil, err
	}
	mach, err := maker.Restore(ctx, s.guestID, s.flavor.Limits(), dir, copied)
	if err == nil {
		m.setMaker(s, maker)
	}
	return mach, err
}

// rescue makes a fresh machine with the files of a record whose memory cannot be
// restored. The box gets a record of its own; the old one is set aside, with the
// memory that the version or image that wrote it can still restore.
func (m *Manager) rescue(ctx context.Context, s *Box, claim *snapshot.Lease, cause error) (*machine.Machine, Source, error) {
	mach, source, r, err := m.freshWithFiles(ctx, s, claim.Dir(), cause)
	if err != nil {
		return mach, source, err
	}
	info, err := readHomeInfo(claim.Dir())
	if err == nil && info.Only != "" { // there is no memory to be kept
		meta := claim.Meta()
		meta.Live = true
		err = claim.Update(meta)
		m.setRescue(s, r, claim)
		return mach, source, err
	}
	next := m.recordFiles(ctx, s, claim.Dir(), r)
	meta := claim.Meta()
	meta.Aside = clip(r.Why, 1000)
	if err := claim.Update(meta); err != nil {
		m.log.Warn("record not set aside", logkey.Record, claim.ID(), logkey.Error, err)
	} else {
		r.Aside = claim.ID()
	}
	m.setRescue(s, r, next)
	m.releaseRecord(claim, true)
	m.log.Warn("memory of a hibernated box not restored; it goes on with its files", logkey.Guest, mach.ID, logkey.Kind, s.key.kind, logkey.Box, s.key.id,
		logkey.Files, r.Files, logkey.Kept, r.Aside, logkey.Error, cause)
	return mach, source, nil
}

// freshWithFiles makes a machine like that of a new box, with the files stored in
// dir, if there are any.
func (m *Manager) freshWithFiles(ctx context.Context, s *Box, dir string, cause error) (*machine.Machine, Source, *Rescue, error) {
	mach, source, err := m.makeNew(ctx, s)
	if err != nil {
		return mach, source, nil, err
	}
	r := &Rescue{Why: mismatch(cause)}
	info, f, err := openHome(dir)
	if err == nil {
		err = mach.Agent.Unpack(ctx, f)
		f.Close()
		r.At, r.Omitted, r.Examples = info.At, info.Omitted, info.Examples
	}
	switch {
	case err == nil:
		r.Files = true
	case ctx.Err() != nil:
		return mach, source, nil, context.Cause(ctx) // start discards it
	default:
		r.NoFiles = reasonOf(err)
		m.log.Warn("files of a box not restored", logkey.Guest, mach.ID, logkey.Kind, s.key.kind, logkey.Box, s.key.id, logkey.Error, err)
	}
	return mach, source, r, nil
}

// recordFiles makes the record of a box that goes on with the files stored in dir;
// nil if that fails. Until the box is written for the first time, the files are
// its data: a server that is killed loses no more than before.
func (m *Manager) recordFiles(ctx context.Context, s *Box, dir string, r *Rescue) *snapshot.Lease {
	claim := m.record(s)
	if claim == nil || !r.Files {
		return claim
	}
	err := claim.Write(ctx, claim.Meta(), 0, func(_ context.Context, to string) error {
		info, err := readHomeInfo(dir)
		if err != nil {
			return err
		}
		info.Only = "its memory could not be restored earlier, and it had not been written to disk since"
		return linkHome(dir, to, info)
	})
	if err != nil {
		m.log.Warn("files of a box not recorded", logkey.Record, claim.ID(), logkey.Error, err)
	}
	return claim
}

func (m *Manager) setRescue(s *Box, r *Rescue, claim *snapshot.Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.rescued, s.origin.claim, s.origin.ran = r, claim, false
}

// copyFiles makes a machine with the files of the parent of s, whose memory could
// not be copied.
func (m *Manager) copyFiles(ctx context.Context, s *Box, dir string, cause error) (*machine.Machine, Source, error) {
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		return nil, SourceFork, fmt.Errorf("make room for a copy: %w", err)
	}
	parent := s.origin.parent
	if err := parent.still(ctx, "fork", func(ctx context.Context, _ *machine.Machine) error {
		return m.archiveHome(ctx, parent, "", home)
	}); err != nil {
		return nil, SourceFork, errors.Join(cause, err)
	}
	mach, source, r, err := m.freshWithFiles(ctx, s, home, cause)
	if err == nil {
		m.setRescue(s, r, nil)
	}
	return mach, source, err
}

// makerOf returns what makes machines like that of a snapshot: with its image and
// its agent, if this host has them.
func (m *Manager) makerOf(dir string, t Template) (*machine.Maker, error) {
	if info, err := readHomeInfo(dir); err == nil && info.Only != "" {
		return nil, fmt.Errorf("%s: %w", info.Only, engine.ErrInvalid)
	}
	maker := m.parts.Machines
	of, err := maker.InspectSnapshot(m.base, dir)
	if err != nil {
		return nil, err
	}
	if m.parts.Agents != nil {
		if agent, ok := m.parts.Agents(of.Agent); ok && agent.Path != maker.Agent.Path {
			maker = maker.WithAgent(agent)
		}
	}
	if of.RootKey == maker.Root.Key || m.parts.Images == nil {
		return maker, nil // which says what is different
	}
	root, interpreters, err := m.parts.Images(of.RootKey, t.Language())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, engine.ErrInvalid)
	}
	return maker.WithImage(root, interpreters), nil
}

// restorable returns why the memory in a snapshot cannot be restored, as far as can
// be seen without reading all of it.
func (m *Manager) restorable(dir string, t Template, f Flavor) error {
	maker, err := m.makerOf(dir, t)
	if err != nil {
		return err
	}
	return maker.CheckSnapshot(m.base, f.Limits(), dir)
}

func (m *Manager) setMaker(s *Box, maker *machine.Maker) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.maker = maker
}

// Rescued says what a box could not bring along from where it came from; nil if
// nothing is missing.
func (s *Box) Rescued() *Rescue {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.rescued
}

// Explain says what was lost and what was kept, in sentences.
func (r *Rescue) Explain() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Variables and running processes are gone: %s.", r.Why)
	switch {
	case r.Files:
		fmt.Fprintf(&b, " The files of the home directory are there as of %s.", r.At.UTC().Format(time.RFC3339))
		if r.Omitted > 0 {
			fmt.Fprintf(&b, " %d files were too large or unreadable and are missing (%s).", r.Omitted, strings.Join(r.Examples, ", "))
		}
	default:
		fmt.Fprintf(&b, " Files could not be brought along: %s.", r.NoFiles)
	}
	if r.Aside != "" {
		fmt.Fprintf(&b, " The old state is kept as snapshot %s; it can be restored with what it was made with, and deleted with delete_snapshot.", r.Aside)
	}
	return b.String()
}

// speaks reports whether the box's image has an interpreter for a language.
func (s *Box) hasInterpreter(language string) bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.maker.Interpreters[language] != ""
}
