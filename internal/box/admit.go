package box

import (
	"cmp"
	"fmt"
	"slices"
)

// usage counts boxes.
type usage struct {
	sessions, contexts, memoryMB int
	boxes                        map[Owner]int
	ownersMB                     map[Owner]int
}

func newUsage() *usage { return &usage{boxes: map[Owner]int{}, ownersMB: map[Owner]int{}} }

func (u *usage) add(s *spec, n int) {
	if s.key.kind == KindSession {
		u.sessions += n
	} else {
		u.contexts += n
	}
	mb := n * s.flavor.Limits().MemoryMB
	u.memoryMB += mb
	u.boxes[s.key.owner] += n
	u.ownersMB[s.key.owner] += mb
}

// usageLocked counts the boxes together with those whose resources are still being
// freed.
func (r *registry) usageLocked() *usage {
	u := newUsage()
	for _, s := range r.boxes {
		u.add(&s.spec, 1)
	}
	for s := range r.leaving {
		u.add(&s.spec, 1)
	}
	return u
}

// crowdedLocked reports whether what is there, and what is still being freed, is
// over a global limit.
func (r *registry) crowdedLocked() bool {
	u := r.usageLocked()
	return u.sessions > r.cfg().MaxSessions || u.contexts > r.cfg().MaxContexts ||
		r.cfg().MaxTotalMemoryMB > 0 && u.memoryMB > r.cfg().MaxTotalMemoryMB
}

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

// roomFor returns an error if a box would not be admitted.
func (r *registry) roomFor(op string, s *spec) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.planLocked(op, s)
	return err
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

func (e *env) limitError(op, limit, msg string) error {
	hint := "Nothing can make room: all of it is in use. Try again when a running call has ended, or stop what is no longer needed."
	if !e.cfg().Evict {
		hint = "Eviction is off on this server: stop what is no longer needed."
	}
	return &Error{Code: CodeLimit, Op: op, Msg: msg, Hint: hint, Context: map[string]string{"limit": limit}}
}

func (e *env) noInterpreter(op, language string) error {
	err := &Error{
		Code: CodeUnsupportedLanguage, Op: op, Context: map[string]string{"language": clip(language, 64)},
		Msg: fmt.Sprintf("Unsupported language: %s. Must be 'python' or 'javascript'", clip(language, 64)),
	}
	if language == Python || language == JavaScript {
		err.Msg = fmt.Sprintf("Unsupported language: %s. The image of this server has no interpreter for it", language)
		err.Hint = "Use the other language, or have the operator install the interpreter."
	}
	return err
}
