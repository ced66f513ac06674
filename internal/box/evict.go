package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
)

// This file chooses the boxes to evict: limitVictimsLocked at a limit, planDiskLocked when the disk
// has no room for a new box, hostVictimLocked when the host is short of memory.
// lifecycle.admitLocked evicts at a limit, lifecycle.makeMachine for the disk (evictForDisk) and
// maintainer for the host's memory (evictForHost), all by lifecycle.unloadLocked in hibernate.go.
// Another owner's box is only ever evicted if it can be hibernated. borrowed.go ends boxes that have
// written beyond the guaranteed share of their disk limit; snapshot/space.go and drop.go make room on the disk.

// diskEvictWait bounds the wait for boxes that are evicted for disk space: a box that
// cannot be written in that time makes no room.
const diskEvictWait = 30 * time.Second

// diskEvictions is how often boxes are evicted for disk space for one start. Writing them
// to disk may take the room that they free, and other starts may be faster.
const diskEvictions = 2

// limitVictimsLocked chooses the boxes to evict so that s fits into all limits. If they do not
// suffice, or eviction is off, the error is CodeLimit. Its text counts the boxes without
// s, but the memory with that of s. If replaced is not nil, s is about
// to take its place.
func (r *registry) limitVictimsLocked(op string, s *spec, replaced *Box) ([]*Box, error) {
	u, owner := newUsage(), s.key.owner
	var idle []*Box
	note := ""
	for _, o := range r.boxes {
		if &o.spec == s { // it was admitted already
			continue
		}
		u.add(&o.spec, 1)
		if o.evictableLocked() {
			idle = append(idle, o)
		} else if o.key.owner == owner && o.use.calls == 0 && o.writeBackoffLocked() { // an owner must learn nothing about the boxes of others
			note = "; an idle box could not be written to disk"
			if o.disk.full {
				note += ", which is full"
			}
		}
	}
	for o, old := range r.replacements {
		if &o.spec != s {
			u.addReplacement(&o.spec, &old.spec, 1)
		}
	}
	if replaced != nil {
		u.addReplacement(s, &replaced.spec, 1)
		note += "; a box that is rolled back takes memory twice for a moment"
	} else {
		u.add(s, 1)
	}

	var victims []*Box
	makeRoom := func(over func() bool, fits func(*Box) bool) bool {
		for over() {
			v := victim(idle, owner, u.ownersMB, func(o *Box) bool { return fits(o) && (o.key.owner == owner || o.canHibernateLocked()) })
			if !r.cfg().Evict || v == nil {
				return false
			}
			victims = append(victims, v)
			u.add(&v.spec, -1)
			idle = slices.DeleteFunc(idle, func(o *Box) bool { return o == v })
		}
		return true
	}
	c := r.cfg()
	other := r.elsewhereLocked(owner)
	adopted := s.origin.adopted != nil // it exists, and is the owner's already
	kind, max, n := "Sessions", c.MaxSessions, &u.sessions
	if s.key.kind == KindContext {
		kind, max, n = "Contexts", c.MaxContexts, &u.contexts
	}
	ownKind := ownerKind{owner, s.key.kind}
	mostBoxes, mostMB := c.most(max)
	switch {
	case !adopted && !makeRoom(func() bool { return c.exceededBy(other.boxes+u.boxes[owner], 0) }, ownedBy(owner)):
		return nil, r.ownerBoxesError(op, s.key.kind, other.boxes+u.boxes[owner]-1, other, note)
	case !adopted && !makeRoom(func() bool { return c.exceededBy(0, other.memoryMB+u.ownersMB[owner]) }, ownedBy(owner)):
		return nil, r.ownerMemoryError(op, s.key.kind, other.memoryMB+u.ownersMB[owner], other, note)
	case !adopted && !makeRoom(func() bool { return u.ofKind[ownKind] > mostBoxes }, func(o *Box) bool { return ownedBy(owner)(o) && o.key.kind == s.key.kind }):
		return nil, r.limitError(op, s.key.kind, "per_owner", fmt.Sprintf("%s limit per user exceeded: %d >= %d, half of those of the server", kind, u.ofKind[ownKind]-1, mostBoxes)+note)
	case !adopted && !makeRoom(func() bool { return u.ownersMB[owner] > mostMB && u.boxes[owner] > 1 }, ownedBy(owner)):
		return nil, r.limitError(op, s.key.kind, "memory_per_owner", fmt.Sprintf("Memory limit per user exceeded: %dMB >= %dMB, half of that of the server", u.ownersMB[owner], mostMB)+note)
	case !makeRoom(func() bool { return *n > max }, func(o *Box) bool { return o.key.kind == s.key.kind }):
		return nil, r.limitError(op, s.key.kind, "count", fmt.Sprintf("%s limit exceeded: %d >= %d", kind, *n-1, max)+note)
	case !makeRoom(func() bool { return c.MaxTotalMemoryMB > 0 && u.memoryMB > c.MaxTotalMemoryMB }, func(*Box) bool { return true }):
		return nil, r.limitError(op, s.key.kind, "memory", fmt.Sprintf("Memory limit exceeded: %dMB >= %dMB", u.memoryMB, c.MaxTotalMemoryMB)+note)
	}
	return victims, nil
}

func ownedBy(owner Owner) func(*Box) bool {
	return func(o *Box) bool { return o.key.owner == owner }
}

// victim returns the idle box to evict for owner; nil if there is none. has is what the
// boxes of each owner use, with the new box: memory in MB, also at a limit of their number, or
// bytes of disk. The owner's own boxes come first. Another
// owner loses a box only if it uses at least as much as this owner.
func victim(idle []*Box, owner Owner, has map[Owner]int, allowed func(*Box) bool) *Box {
	own := ownedBy(owner)
	if slices.ContainsFunc(idle, func(o *Box) bool { return own(o) && allowed(o) }) {
		return leastRecentOfHeaviest(idle, has, func(o *Box) bool { return own(o) && allowed(o) })
	}
	return leastRecentOfHeaviest(idle, has, func(o *Box) bool { return has[o.key.owner] >= has[owner] && allowed(o) })
}

// leastRecentOfHeaviest returns the least recently used of the allowed boxes of the owner who
// uses most among those who have one; nil if no box is allowed.
func leastRecentOfHeaviest(idle []*Box, has map[Owner]int, allowed func(*Box) bool) *Box {
	var best *Box
	for _, o := range idle {
		if allowed(o) && (best == nil || cmp.Or(
			cmp.Compare(has[best.key.owner], has[o.key.owner]),
			cmp.Compare(o.use.seq, best.use.seq)) < 0) {
			best = o
		}
	}
	return best
}

// hostVictimLocked returns the idle box to evict when the host is short of memory; nil
// if there is none. Boxes that cannot be hibernated stay: no box ends for the host.
func (r *registry) hostVictimLocked() *Box {
	u := newUsage()
	var idle []*Box
	for _, o := range r.boxes {
		u.add(&o.spec, 1)
		if o.evictableLocked() {
			idle = append(idle, o)
		}
	}
	return leastRecentOfHeaviest(idle, u.ownersMB, (*Box).canHibernateLocked)
}

// evictForHost evicts one box because the host is short of memory, and returns it; nil
// if there is none to evict.
func (m *maintainer) evictForHost() *Box {
	m.reg.mu.Lock()
	defer m.reg.mu.Unlock()
	if !m.cfg().Evict || m.reg.phase != phaseOpen {
		return nil
	}
	b := m.reg.hostVictimLocked()
	if b != nil {
		m.life.unloadLocked(b, ReasonEvicted, "the host was short of memory")
	}
	return b
}

// trimPool ends a machine of the pool, and reports whether there was one.
func (l *lifecycle) trimPool(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, diskEvictWait)
	defer cancel()
	pool := l.machines.pool
	return pool != nil && pool.Trim(ctx, 1) > 0
}

// evictForDisk makes room on the disk for a box that could not start, whose error is cause:
// it evicts idle boxes, and waits until they have left memory or stay. It evicts none if
// that would not make enough room; if the engine does not say how much each box takes, it evicts
// one. It reports whether it evicted any and all of them left, or stayed, in time.
func (l *lifecycle) evictForDisk(ctx context.Context, b *Box, cause error) bool {
	ctx, cancel := context.WithTimeout(ctx, diskEvictWait)
	defer cancel()
	leaving := l.takeDiskVictims(b, cause)
	return len(leaving) > 0 && allLeft(ctx, leaving)
}

// allLeft waits for boxes that are leaving memory, and reports whether all have left, or stayed,
// before ctx ended.
func allLeft(ctx context.Context, leaving []<-chan struct{}) bool {
	for _, left := range leaving {
		select {
		case <-left:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// takeDiskVictims begins to evict idle boxes so that the disk has room for b. It returns a
// channel for each, which is closed when the box has left memory or stays since it could
// not be written.
func (l *lifecycle) takeDiskVictims(b *Box, cause error) (leaving []<-chan struct{}) {
	full, _ := errors.AsType[*hostdisk.FullError](cause)
	var reclaimable map[string]int64
	if disk, ok := engine.As[hostdisk.Engine](l.parts.Machines.Engine); ok && full != nil {
		reclaimable = disk.Reclaimable()
	}
	l.reg.mu.Lock()
	defer l.reg.mu.Unlock()
	if !l.cfg().Evict || l.reg.phase != phaseOpen {
		return nil
	}
	var victims []*Box
	if reclaimable != nil {
		victims = l.reg.planDiskLocked(b, full, reclaimable)
	} else if v := l.reg.anyVictimLocked(b); v != nil {
		victims = []*Box{v}
	}
	for _, v := range victims {
		leaving = append(leaving, v.unloadDone)
		l.unloadLocked(v, ReasonEvicted, fmt.Sprintf("it was idle when the disk was nearly full and a new %s needed room", b.key.kind))
	}
	return leaving
}

// evictableForLocked returns whether a box may be evicted for b.
func evictableForLocked(b *Box) func(*Box) bool {
	return func(o *Box) bool { return o.key.owner == b.key.owner || o.canHibernateLocked() }
}

// planDiskLocked chooses the boxes to evict so that the disk has room for b; none if they
// would not suffice. reclaimable is what the end of each guest frees.
func (r *registry) planDiskLocked(b *Box, full *hostdisk.FullError, reclaimable map[string]int64) (victims []*Box) {
	has := map[Owner]int{b.key.owner: int(full.Need)}
	var idle []*Box
	for _, o := range r.boxes {
		bytes := reclaimable[o.guestID]
		has[o.key.owner] += int(bytes)
		// It has no guest yet, but is about to take space. Later starts do not count; else
		// many simultaneous starts would keep each other from any space.
		if bytes == 0 && o.state.starting() && o.use.seq < b.use.seq {
			has[o.key.owner] += int(full.Need)
		}
		if bytes > 0 && o.evictableLocked() {
			idle = append(idle, o)
		}
	}
	missing := full.Missing
	for missing > 0 {
		v := victim(idle, b.key.owner, has, evictableForLocked(b))
		if v == nil {
			return nil
		}
		victims = append(victims, v)
		idle = slices.DeleteFunc(idle, func(o *Box) bool { return o == v })
		has[v.key.owner] -= int(reclaimable[v.guestID])
		missing -= reclaimable[v.guestID]
	}
	return needed(victims, missing, reclaimable)
}

// needed returns the victims without those that the last one has made superfluous. missing is what
// is missing after the end of all: nothing, or less.
func needed(victims []*Box, missing int64, reclaimable map[string]int64) []*Box {
	return slices.DeleteFunc(victims, func(v *Box) bool {
		if missing+reclaimable[v.guestID] > 0 {
			return false
		}
		missing += reclaimable[v.guestID]
		return true
	})
}

// anyVictimLocked chooses a box to evict for b where the engine does not say how much room
// there is; nil if none may be evicted for b.
func (r *registry) anyVictimLocked(b *Box) *Box {
	u := newUsage()
	var idle []*Box
	for _, o := range r.boxes {
		u.add(&o.spec, 1)
		if o.evictableLocked() {
			idle = append(idle, o)
		}
	}
	return victim(idle, b.key.owner, u.ownersMB, evictableForLocked(b))
}

// evictLocked begins to evict the boxes that limitVictimsLocked chooses.
func (l *lifecycle) evictLocked(op string, b, replaced *Box) error {
	victims, err := l.reg.limitVictimsLocked(op, &b.spec, replaced)
	for _, v := range victims {
		l.unloadLocked(v, ReasonEvicted, fmt.Sprintf("it was idle when room for a new %s was needed", b.key.kind))
	}
	return err
}
