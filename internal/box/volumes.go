package box

import (
	"fmt"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// Volumes returns the volumes that boxes have; their host directories may be others for
// each owner, see VolumesOf.
func (m *Manager) Volumes() []engine.Mount { return slices.Clone(m.parts.Machines.Volumes) }

// VolumesOf returns the volumes of an owner's boxes.
//
// Errors: CodeNotReady if they cannot be had now.
func (m *Manager) VolumesOf(owner Owner) ([]engine.Mount, error) {
	k, err := m.machines.makerFor(owner)
	if err != nil {
		m.log.Warn("volumes of an owner not opened", logkey.Error, err)
		return nil, &Error{
			Code: CodeNotReady, Op: "list volumes", Msg: "The shared directories cannot be opened",
			Hint: "The operator finds the reason in the server's log.",
		}
	}
	return slices.Clone(k.Volumes), nil
}

// volumes returns the volumes of the box's machine.
func (b *Box) volumes() []engine.Mount {
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	return b.maker.Volumes
}

// ReviseVolumes compares the volumes of the boxes in memory with those that Parts.Volumes
// returns now. A box with a writable volume that is frozen now leaves memory at once, also
// during a call, and the next call on its id wakes it with the frozen volume. A box whose
// volume is frozen no more leaves memory when it is idle. A box that cannot be hibernated
// ends. Nothing is done while Parts.Volumes is nil.
func (m *Manager) ReviseVolumes() {
	if m.parts.Volumes == nil {
		return
	}
	wanted := make(map[Owner][]engine.Mount)
	for _, owner := range m.reg.owners() {
		volumes, err := m.parts.Volumes(owner)
		if err != nil {
			m.log.Warn("volumes of an owner not opened", logkey.Error, err)
			continue
		}
		wanted[owner] = volumes
	}
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	if m.reg.phase != phaseOpen {
		return
	}
	for _, s := range m.reg.lastUsedLocked() {
		if want, ok := wanted[s.key.owner]; ok && s.machine != nil {
			m.life.reviseVolumesLocked(s, want)
		}
	}
}

// owners returns the owners of the boxes in memory.
func (r *registry) owners() []Owner {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []Owner
	for k := range r.boxes {
		if !slices.Contains(list, k.owner) {
			list = append(list, k.owner)
		}
	}
	return list
}

// reviseVolumesLocked takes a box out of memory if its volumes differ from want.
func (l *lifecycle) reviseVolumesLocked(s *Box, want []engine.Mount) {
	over, within := frozenSince(s.maker.Volumes, want), frozenSince(want, s.maker.Volumes)
	switch {
	case !s.state.live():
	case len(over) > 0:
		detail := fmt.Sprintf("the volume %s is over its quota, and boxes may only read it now", strings.Join(over, " and "))
		if s.revised { // it could not be hibernated, and still writes
			l.terminateLocked(s, ReasonEvicted, detail)
			return
		}
		s.revised = true
		l.unloadLocked(s, ReasonEvicted, detail)
	case len(within) > 0 && s.use.calls == 0 && len(s.use.pins) == 0 && (s.state == stateReady || s.state == statePaused):
		l.unloadLocked(s, ReasonEvicted, fmt.Sprintf("the volume %s is within its quota, and boxes may write to it again", strings.Join(within, " and ")))
	}
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

// frozenNote returns a note about the volumes of the box that it may only read for now, ""
// if there are none or a result had the note.
func (b *Box) frozenNote() string {
	paths := frozenSince(make([]engine.Mount, len(b.volumes())), b.volumes())
	if len(paths) == 0 || b.frozenNoted.Swap(true) {
		return ""
	}
	return fmt.Sprintf("The volume %s is over its quota and read-only until files are removed from it on the server's machine: write below the home directory or /tmp instead.",
		strings.Join(paths, " and "))
}
