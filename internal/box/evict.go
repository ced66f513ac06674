package box

import (
	"cmp"
	"fmt"
	"slices"
)

// planLocked chooses the boxes that have to go for s.
func (r *registry) planLocked(op string, s *spec) ([]*Box, error) {
	u, owner := newUsage(), s.key.owner
	var idle []*Box
	for _, o := range r.boxes {
		u.add(&o.spec, 1)
		if o.evictableLocked() {
			idle = append(idle, o)
		}
	}
	u.add(s, 1)

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
	own := func(o *Box) bool { return o.key.owner == owner }

	c := r.cfg()
	kind, max, n := "Sessions", c.MaxSessions, &u.sessions
	if s.key.kind == KindContext {
		kind, max, n = "Contexts", c.MaxContexts, &u.contexts
	}
	switch {
	case !makeRoom(func() bool { return c.MaxPerOwner > 0 && u.boxes[owner] > c.MaxPerOwner }, own):
		return nil, r.limitError(op, "per_owner", fmt.Sprintf("Limit per user exceeded: %d >= %d", u.boxes[owner]-1, c.MaxPerOwner))
	case !makeRoom(func() bool { return c.MaxMemoryPerOwnerMB > 0 && u.ownersMB[owner] > c.MaxMemoryPerOwnerMB }, own):
		return nil, r.limitError(op, "memory_per_owner", fmt.Sprintf("Memory limit per user exceeded: %dMB >= %dMB", u.ownersMB[owner], c.MaxMemoryPerOwnerMB))
	case !makeRoom(func() bool { return *n > max }, func(o *Box) bool { return o.key.kind == s.key.kind }):
		return nil, r.limitError(op, "count", fmt.Sprintf("%s limit exceeded: %d >= %d", kind, *n-1, max))
	case !makeRoom(func() bool { return c.MaxTotalMemoryMB > 0 && u.memoryMB > c.MaxTotalMemoryMB }, func(*Box) bool { return true }):
		return nil, r.limitError(op, "memory", fmt.Sprintf("Memory limit exceeded: %dMB >= %dMB", u.memoryMB, c.MaxTotalMemoryMB))
	}
	return victims, nil
}

// victim returns the idle box that is the next to make room for a box of owner,
// which is in u already; nil if there is none. Of those that may go, the owner's
// own come first, the least recently used before others. Then come those of who
// holds most, but of nobody who holds less than the owner: whoever takes much
// takes it from others who do, never from those who take little.
func victim(idle []*Box, owner Owner, u *usage, may func(*Box) bool) *Box {
	var best *Box
	for _, o := range idle {
		if !may(o) || u.ownersMB[o.key.owner] < u.ownersMB[owner] {
			continue
		}
		if best == nil || cmp.Or(
			-compareBool(o.key.owner == owner, best.key.owner == owner),
			-cmp.Compare(u.ownersMB[o.key.owner], u.ownersMB[best.key.owner]),
			cmp.Compare(o.use.seq, best.use.seq)) < 0 {
			best = o
		}
	}
	return best
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// idleLongestLocked returns the box that nobody uses and that was used least
// recently; nil if all are in use.
func (r *registry) idleLongestLocked() *Box {
	var oldest *Box
	for _, s := range r.boxes {
		if s.evictableLocked() && (oldest == nil || s.use.seq < oldest.use.seq) {
			oldest = s
		}
	}
	return oldest
}

// evictIdlest evicts the box that nobody has used for longest; nil if there is none.
func (p *reaper) evictIdlest() *Box {
	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	s := p.reg.idleLongestLocked()
	if s == nil || !p.cfg().Evict || p.reg.phase != phaseOpen {
		return nil
	}
	p.life.unloadLocked(s, ReasonEvicted, "the host was short of memory")
	return s
}
