package box

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// diskEvictWait bounds the wait for a box that is evicted for disk space: a box that
// cannot be written in that time makes no room.
const diskEvictWait = 30 * time.Second

// This file chooses the boxes to evict: planLocked at a limit, hostVictimLocked when the
// host is short of memory. lifecycle.unloadLocked evicts them. Another owner's box is
// only ever evicted if it can be hibernated. snapshot/space.go evicts records on disk.

// planLocked chooses the boxes to evict so that s fits into all limits. If they do not
// suffice, or eviction is off, the error is CodeLimit. If replaced is not nil, s is about
// to take its place.
func (r *registry) planLocked(op string, s *spec, replaced *Box) ([]*Box, error) {
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
		} else if o.use.calls == 0 && o.backoffLocked() {
			note = "; an idle box could not be written to disk"
		}
	}
	for o, old := range r.replacements {
		if &o.spec != s {
			u.addReplacement(&o.spec, &old.spec)
		}
	}
	if replaced != nil {
		u.addReplacement(s, &replaced.spec)
		note += "; a box that is rolled back takes memory twice for a moment"
	} else {
		u.add(s, 1)
	}

	var victims []*Box
	makeRoom := func(over func() bool, fits func(*Box) bool) bool {
		for over() {
			v := victim(idle, owner, u, func(o *Box) bool { return fits(o) && (o.key.owner == owner || o.canHibernateLocked()) })
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
	kind, max, n := "Sessions", c.MaxSessions, &u.sessions
	if s.key.kind == KindContext {
		kind, max, n = "Contexts", c.MaxContexts, &u.contexts
	}
	switch {
	case !makeRoom(func() bool { return c.MaxPerOwner > 0 && u.boxes[owner] > c.MaxPerOwner }, ownedBy(owner)):
		return nil, r.limitError(op, "per_owner", fmt.Sprintf("Limit per user exceeded: %d >= %d", u.boxes[owner]-1, c.MaxPerOwner)+note)
	case !makeRoom(func() bool { return c.MaxMemoryPerOwnerMB > 0 && u.ownersMB[owner] > c.MaxMemoryPerOwnerMB }, ownedBy(owner)):
		return nil, r.limitError(op, "memory_per_owner", fmt.Sprintf("Memory limit per user exceeded: %dMB >= %dMB", u.ownersMB[owner], c.MaxMemoryPerOwnerMB)+note)
	case !makeRoom(func() bool { return *n > max }, func(o *Box) bool { return o.key.kind == s.key.kind }):
		return nil, r.limitError(op, "count", fmt.Sprintf("%s limit exceeded: %d >= %d", kind, *n-1, max)+note)
	case !makeRoom(func() bool { return c.MaxTotalMemoryMB > 0 && u.memoryMB > c.MaxTotalMemoryMB }, func(*Box) bool { return true }):
		return nil, r.limitError(op, "memory", fmt.Sprintf("Memory limit exceeded: %dMB >= %dMB", u.memoryMB, c.MaxTotalMemoryMB)+note)
	}
	return victims, nil
}

func ownedBy(owner Owner) func(*Box) bool {
	return func(o *Box) bool { return o.key.owner == owner }
}

// victim returns the idle box to evict for owner; nil if there is none. u includes the
// new box. The owner's own boxes come first. Other owners lose boxes only if they have
// no less memory than the owner.
func victim(idle []*Box, owner Owner, u *usage, allowed func(*Box) bool) *Box {
	own := ownedBy(owner)
	if slices.ContainsFunc(idle, func(o *Box) bool { return own(o) && allowed(o) }) {
		return heaviest(idle, u, func(o *Box) bool { return own(o) && allowed(o) })
	}
	return heaviest(idle, u, func(o *Box) bool { return u.ownersMB[o.key.owner] >= u.ownersMB[owner] && allowed(o) })
}

// heaviest returns, of the owner with the most memory who has an allowed box, the one
// that was least recently used; nil if no box is allowed.
func heaviest(idle []*Box, u *usage, allowed func(*Box) bool) *Box {
	var best *Box
	for _, o := range idle {
		if allowed(o) && (best == nil || cmp.Or(
			cmp.Compare(u.ownersMB[best.key.owner], u.ownersMB[o.key.owner]),
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
	return heaviest(idle, u, (*Box).canHibernateLocked)
}

// evictForHost evicts one box because the host is short of memory, and returns it; nil
// if there is none to evict.
func (p *reaper) evictForHost() *Box {
	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	if !p.cfg().Evict || p.reg.phase != phaseOpen {
		return nil
	}
	s := p.reg.hostVictimLocked()
	if s != nil {
		p.life.unloadLocked(s, ReasonEvicted, "the host was short of memory")
	}
	return s
}

// evictForDisk makes room on the disk for a box that could not start: it ends a machine
// of the pool or evicts an idle box, and waits until that is done. It reports whether
// there may be room now.
func (l *lifecycle) evictForDisk(ctx context.Context, s *Box) bool {
	ctx, cancel := context.WithTimeout(ctx, diskEvictWait)
	defer cancel()
	if pool := l.machines.pool; pool != nil && pool.Trim(ctx, 1) > 0 {
		return true
	}
	v, left := l.takeDiskVictim(s)
	if v == nil {
		return false
	}
	select {
	case <-left:
	case <-ctx.Done():
		return false
	}
	l.reg.mu.Lock()
	defer l.reg.mu.Unlock()
	return l.reg.boxes[v.key] != v // it could not be written to disk, and stays
}

// takeDiskVictim begins to evict an idle box for s, and returns it with a channel that is
// closed when it has left memory or stays; nil if there is none that s may replace.
func (l *lifecycle) takeDiskVictim(s *Box) (v *Box, left <-chan struct{}) {
	l.reg.mu.Lock()
	defer l.reg.mu.Unlock()
	if !l.cfg().Evict || l.reg.phase != phaseOpen {
		return nil, nil
	}
	u, owner := newUsage(), s.key.owner
	var idle []*Box
	for _, o := range l.reg.boxes {
		u.add(&o.spec, 1)
		if o.evictableLocked() {
			idle = append(idle, o)
		}
	}
	v = victim(idle, owner, u, func(o *Box) bool { return o.key.owner == owner || o.canHibernateLocked() })
	if v == nil {
		return nil, nil
	}
	left = v.freed
	l.unloadLocked(v, ReasonEvicted, fmt.Sprintf("it was idle when the disk was nearly full and a new %s needed room", s.key.kind))
	return v, left
}
