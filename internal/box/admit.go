package box

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
)

// usage counts boxes.
type usage struct {
	sessions, contexts, memoryMB int
	boxes                        map[Owner]int
	ofKind                       map[ownerKind]int
	ownersMB                     map[Owner]int
}

// ownerKind is a kind of boxes of one owner.
type ownerKind struct {
	owner Owner
	kind  Kind
}

func newUsage() *usage {
	return &usage{boxes: map[Owner]int{}, ofKind: map[ownerKind]int{}, ownersMB: map[Owner]int{}}
}

func (u *usage) add(s *spec, n int) {
	if s.key.kind == KindSession {
		u.sessions += n
	} else {
		u.contexts += n
	}
	mb := n * s.flavor.Limits().MemoryMB
	u.memoryMB += mb
	u.boxes[s.key.owner] += n
	u.ofKind[ownerKind{s.key.owner, s.key.kind}] += n
	u.ownersMB[s.key.owner] += mb
}

// addReplacement counts the machine that is being made to replace that of a live box, for
// which both machines take memory. Its owner has the larger one of both.
func (u *usage) addReplacement(s, replaced *spec, n int) {
	mb := s.flavor.Limits().MemoryMB
	u.memoryMB += n * mb
	u.ownersMB[s.key.owner] += n * max(0, mb-replaced.flavor.Limits().MemoryMB)
}

// exceeds reports whether the boxes of a kind, or the memory of all boxes, exceed a limit.
func (u *usage) exceeds(c *Config, k Kind) bool {
	if k == KindSession && u.sessions > c.MaxSessions || k == KindContext && u.contexts > c.MaxContexts {
		return true
	}
	return c.MaxTotalMemoryMB > 0 && u.memoryMB > c.MaxTotalMemoryMB
}

// exceedsOwn reports whether the boxes of an owner exceed a limit of the owner. k is the kind of the
// one that is made.
func (u *usage) exceedsOwn(c *Config, o Owner, k Kind) bool {
	ofKind := c.MaxSessions
	if k == KindContext {
		ofKind = c.MaxContexts
	}
	mostBoxes, _ := c.most(ofKind)
	return c.exceededBy(u.boxes[o], 0) || u.ofKind[ownerKind{o, k}] > mostBoxes || u.exceedsOwnMemory(c, o)
}

// exceedsOwnMemory is exceedsOwn for the limits of memory only.
func (u *usage) exceedsOwnMemory(c *Config, o Owner) bool {
	_, mostMB := c.most(0)
	return c.exceededBy(0, u.ownersMB[o]) || u.ownersMB[o] > mostMB && u.boxes[o] > 1
}

// liveUsageLocked counts the boxes in memory, without those that are leaving it.
func (r *registry) liveUsageLocked() *usage {
	u := newUsage()
	for _, b := range r.boxes {
		u.add(&b.spec, 1)
	}
	for b, replaced := range r.replacements {
		u.addReplacement(&b.spec, &replaced.spec, 1)
	}
	return u
}

// usageLocked counts the boxes together with those whose resources are still being
// freed.
func (r *registry) usageLocked() *usage {
	u := r.liveUsageLocked()
	for b := range r.freeing {
		u.add(&b.spec, 1)
	}
	return u
}

// waitForRoomLocked adds b to the starts that wait for room.
func (r *registry) waitForRoomLocked(b *Box) {
	b.waits = true
	r.waiting = append(r.waiting, b)
}

// grantRoomLocked gives the free room to the starts that wait for it, and wakes them. A box
// that is leaving memory occupies its room until it is freed. Room goes to the owner whose
// boxes occupy the least memory, and among those owners to the start that was admitted
// first. A start that needs more than the free room lets others pass.
func (r *registry) grantRoomLocked() {
	u := newUsage()
	add := func(o *Box, n int) {
		if replaced := r.replacements[o]; replaced != nil {
			u.addReplacement(&o.spec, &replaced.spec, n)
		} else {
			u.add(&o.spec, n)
		}
	}
	for _, set := range []iter.Seq[*Box]{maps.Values(r.boxes), maps.Keys(r.freeing), maps.Keys(r.replacements)} {
		for o := range set {
			if !o.waits {
				add(o, 1)
			}
		}
	}
	type start struct {
		*Box
		ownerMB int // with the owner's starts that were admitted earlier
		order   int // of admission
	}
	starts := make([]start, len(r.waiting))
	for i, o := range r.waiting {
		starts[i] = start{o, u.ownersMB[o.key.owner], i}
		add(o, 1)
	}
	for _, o := range r.waiting {
		add(o, -1)
	}
	slices.SortFunc(starts, func(a, b start) int { return cmp.Or(cmp.Compare(a.ownerMB, b.ownerMB), cmp.Compare(a.order, b.order)) })
	granted := false
	for _, next := range starts {
		o := next.Box
		add(o, 1)
		if u.exceeds(r.cfg(), o.key.kind) || r.exceedsOwnLocked(u, o) {
			add(o, -1)
			continue
		}
		o.waits, granted = false, true
	}
	if granted {
		r.waiting = slices.DeleteFunc(r.waiting, func(o *Box) bool { return !o.waits })
		r.changed.broadcast()
	}
}

// exceedsOwnLocked reports whether the start of b has to wait for a limit of its owner. The adoption
// of a box, which exists, never has to, and a rollback only if its flavor has more memory than that
// of the box before.
func (r *registry) exceedsOwnLocked(u *usage, b *Box) bool {
	old := r.replacements[b]
	switch {
	case b.origin.adopted != nil:
		return false
	case old == nil:
		return u.exceedsOwn(r.cfg(), b.key.owner, b.key.kind)
	}
	return b.flavor.Limits().MemoryMB > old.flavor.Limits().MemoryMB && u.exceedsOwnMemory(r.cfg(), b.key.owner)
}

// roomFor returns an error if a box would not be admitted.
func (r *registry) roomFor(op string, s *spec) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.limitVictimsLocked(op, s, nil)
	return err
}

// stopHint says how a model makes room for a box of a kind, with the tools of that kind: the server
// may not offer those of the other.
func stopHint(k Kind) string {
	list, stop := "get_sessions", "stop_session"
	if k == KindContext {
		list, stop = "list_contexts", "stop_context"
	}
	return fmt.Sprintf("use one that is there, or stop one that is no longer needed: %s lists them, %s ends one with what is in it.", list, stop)
}

func (e *env) limitError(op string, k Kind, limit, msg string) error {
	hint := "No idle box may be evicted for this one. Try again when a running call has ended, " + stopHint(k)
	if !e.cfg().Evict {
		hint = "Eviction is off on this server: " + stopHint(k)
	}
	return &Error{Code: CodeLimit, Op: op, Msg: msg, Hint: hint, Context: map[string]string{"limit": limit}}
}

// ownerBoxesError is the error of a box that exceeds MaxPerOwner beside n others.
func (e *env) ownerBoxesError(op string, k Kind, n int, other ownerUse, note string) error {
	if other.boxes > 0 {
		note = fmt.Sprintf(", %d of them at other servers", other.boxes) + note
	}
	return e.limitError(op, k, "per_owner", fmt.Sprintf("Limit per user exceeded: %d >= %d boxes (sessions and contexts)", n, e.cfg().MaxPerOwner)+note)
}

// ownerMemoryError is the error of a box that exceeds MaxMemoryPerOwnerMB: mb is the memory of
// the owner's boxes with it.
func (e *env) ownerMemoryError(op string, k Kind, mb int, other ownerUse, note string) error {
	if other.memoryMB > 0 {
		note = fmt.Sprintf(", %dMB of it at other servers", other.memoryMB) + note
	}
	return e.limitError(op, k, "memory_per_owner", fmt.Sprintf("Memory limit per user exceeded: %dMB >= %dMB", mb, e.cfg().MaxMemoryPerOwnerMB)+note)
}

// noInterpreter returns the error for a language that a box of an image has no interpreter
// for. have are the interpreters that it has, and whose says whose image it is.
func noInterpreter(op, language, whose string, have map[string]string) error {
	err := &Error{
		Code: CodeUnsupportedLanguage, Op: op, Context: map[string]string{"language": clip(language, 64)},
		Msg: fmt.Sprintf("Unsupported language: %s. Must be 'python' or 'javascript'", clip(language, 64)),
	}
	if language == Python || language == JavaScript {
		err.Msg = fmt.Sprintf("Unsupported language: %s. The image of this %s has no interpreter for it", language, whose)
		err.Hint = "Use the other language, or have the operator install the interpreter."
		if len(have) == 0 {
			err.Msg = fmt.Sprintf("The image of this %s has neither Python nor Node.js: boxes run commands only", whose)
			err.Hint = "Use execute_command."
		}
	}
	return err
}
