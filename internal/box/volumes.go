package box

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
)

// Volumes chooses the volumes of boxes, at the paths and with the modes of
// Parts.Machines.Volumes. Its methods may be called concurrently.
type Volumes interface {
	// Of returns the volumes for a new machine of an owner's box, and creates what is
	// missing.
	Of(Owner) ([]engine.Mount, error)
	// Peek returns what Of would return now, without a look at the disk.
	Peek(Owner) []engine.Mount
}

// Volumes returns the volumes that boxes have; their host directories may be others for
// each owner, see VolumesOf.
func (m *Manager) Volumes() []engine.Mount { return slices.Clone(m.parts.Machines.Volumes) }

// VolumesOf returns the volumes of an owner's boxes. It creates nothing: a directory of the
// host may be missing until the owner's first box.
func (m *Manager) VolumesOf(owner Owner) []engine.Mount {
	if m.parts.Volumes == nil {
		return m.Volumes()
	}
	return m.parts.Volumes.Peek(owner)
}

// volumes returns the volumes of the box's machine.
func (b *Box) volumes() []engine.Mount {
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	return b.maker.Volumes
}

// ReviseVolumes compares the volumes of an owner's boxes in memory with those that
// Parts.Volumes returns now. A box with a writable volume that is frozen now leaves memory at
// once, also during a call, and the next call on its id wakes it with the frozen volume. A
// box whose volume is frozen no more leaves memory when it is idle. A box that cannot be
// hibernated ends.
func (m *Manager) ReviseVolumes(owner Owner) {
	want := m.VolumesOf(owner)
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	if m.reg.phase != phaseOpen {
		return
	}
	for _, b := range m.reg.lastUsedLocked() {
		if b.key.owner == owner && b.machine != nil {
			m.life.reviseVolumesLocked(b, want)
		}
	}
}

// reviseVolumesLocked takes a box out of memory if its volumes differ from want.
func (l *lifecycle) reviseVolumesLocked(b *Box, want []engine.Mount) {
	over, within := frozenSince(b.maker.Volumes, want), frozenSince(want, b.maker.Volumes)
	switch {
	case !b.state.live():
	case len(over) > 0:
		detail := fmt.Sprintf("the volume %s is over its quota, and boxes may only read it now", strings.Join(over, " and "))
		if b.quotaDetail != "" { // it could not be hibernated, and still writes
			l.terminateLocked(b, ReasonEvicted, detail)
			return
		}
		b.quotaDetail = detail
		l.unloadLocked(b, ReasonEvicted, detail)
	case len(within) > 0 && b.use.calls == 0 && len(b.use.pins) == 0 && (b.state == stateReady || b.state == statePaused):
		l.unloadLocked(b, ReasonEvicted, fmt.Sprintf("the volume %s is within its quota, and boxes may write to it again", strings.Join(within, " and ")))
	}
}

// endedForQuota reports whether t is about the end of the box for a volume over its quota.
func (b *Box) endedForQuota(t *Tombstone) bool {
	return b.quotaDetail != "" && strings.HasPrefix(t.Detail, b.quotaDetail)
}

// quotaHint follows the hint of an error about such a box.
const quotaHint = " The files in the volume stay. Until some are shortened or removed on the server's machine, write below the home directory or /tmp instead."

// frozenError says that the memory of a box cannot be restored while volumes are read-only for
// their quota. It is engine.ErrInvalid.
type frozenError struct {
	paths string // of the volumes in boxes
	err   error
}

// Error is for the operator: it has the words of the engine.
func (e *frozenError) Error() string { return e.Public() + ": " + e.err.Error() }

// Unwrap returns the error of the engine.
func (e *frozenError) Unwrap() error { return e.err }

// Public is the clause for clients.
func (e *frozenError) Public() string {
	return fmt.Sprintf("the volume %s is over its quota and read-only now, and a program had a file of it open that it could write", e.paths)
}

// remedy says how to get the memory back from a snapshot of a box of that kind.
func (e *frozenError) remedy(k Kind) string {
	return fmt.Sprintf("once the volume %s is within its quota again, restore_%s %s brings its variables back. A file that was open must stay for that: shorten it instead of removing it", e.paths, k, snapshotTools)
}

// explainFrozen returns err, why the memory of a box cannot be restored, or a *frozenError if
// volumes became read-only for their quota: memory with a file in one that is open for writing
// cannot be restored then.
func explainFrozen(err error, volumes []engine.Mount) error {
	paths := frozenSince(make([]engine.Mount, len(volumes)), volumes)
	if len(paths) == 0 || !errors.Is(err, engine.ErrInvalid) || isMissingImage(err) || !errors.As(err, new(publicError)) {
		return err
	}
	return &frozenError{strings.Join(paths, " and "), err}
}

// VolumeError is the error of a start that lacks a volume.
type VolumeError struct {
	Guest string // the path of the volume in boxes
	Why   string // a clause for clients, without paths of the host: "its directory on the server is not there"
	Err   error  // for the operator
}

// Error is for the operator.
func (e *VolumeError) Error() string { return fmt.Sprintf("use the volume %s: %v", e.Guest, e.Err) }

// Unwrap returns Err.
func (e *VolumeError) Unwrap() error { return e.Err }

// withoutVolume returns the error of a start that lacks a volume.
func (s *spec) withoutVolume(op string, e *VolumeError) error {
	return s.error(CodeStartFailed, op, fmt.Sprintf("%s: the volume %s cannot be used, since %s", s.startFailed(), e.Guest, e.Why),
		"The operator can repair the directory of the volume, which the server's log names. Then call again.", e)
}

// frozenSince returns the paths of the volumes that are frozen in now and were not before.
func frozenSince(before, now []engine.Mount) (paths []string) {
	for i, v := range now {
		if v.Frozen && i < len(before) && !before[i].Frozen {
			paths = append(paths, v.Guest)
		}
	}
	return paths
}

// frozenAt returns the path of the frozen volume that has p, which a client chose; "" if it is
// in none.
func frozenAt(volumes []engine.Mount, p string) string {
	for _, v := range volumes {
		if v.Frozen && strings.HasPrefix(path.Clean(p)+"/", path.Clean(v.Guest)+"/") {
			return v.Guest
		}
	}
	return ""
}

// readOnlyFailure matches what programs print when a file system refuses a write.
var readOnlyFailure = lazyregexp.New(`[Rr]ead-only file system|\bEROFS\b`)

// frozenNote returns a note about the volumes of the box that it may only read for now, ""
// if there are none. After the first one, only results of refused writes have it, in short.
func (b *Box) frozenNote(o hintInput) string {
	volumes := b.volumes()
	paths := frozenSince(make([]engine.Mount, len(volumes)), volumes)
	if len(paths) == 0 {
		return ""
	}
	if b.frozenNoted.Swap(true) {
		if readOnlyFailure().MatchString(o.stderr) || readOnlyFailure().MatchString(o.stdout) {
			return fmt.Sprintf("The volume %s is still over its quota and read-only.", strings.Join(paths, " and "))
		}
		return ""
	}
	return fmt.Sprintf("The volume %s is over its quota and read-only until files in it are shortened or removed on the server's machine: write below the home directory or /tmp instead.",
		strings.Join(paths, " and "))
}
