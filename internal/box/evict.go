package box

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"
)

// admitLocked reserves room for a new box and begins its start. At a limit boxes
// that nobody uses make room, as victim chooses them; an owner's quota takes the
// owner's own only. If that is not enough, or eviction is off, nothing is ended
// and the error is CodeLimit.
func (m *Manager) admitLocked(op string, s *Box) error {
	// A box that comes from somewhere may have another image than new ones.
	if s.origin == (origin{}) && m.parts.Machines.Interpreters[s.template.Language()] == "" {
		return m.noInterpreter(op, s.template.Language())
	}
	victims, err := m.planLocked(op, s)
	if err != nil {
		return err
	}
	for _, v := range victims {
		m.unloadLocked(v, ReasonEvicted, fmt.Sprintf("it was the least recently used one when room for a new %s was needed", s.key.kind))
	}
	// What is ended still holds memory for a moment; no over-commit.
	wait := slices.Collect(maps.Keys(m.leaving))

	m.prepare(s)
	s.touchLocked()
	m.boxes[s.key] = s
	if !m.crowdedLocked() {
		wait = nil
	}
	m.wg.Go(func() { m.start(op, s, wait) })
	return nil
}

// prepare sets up what every box has before it is started.
func (m *Manager) prepare(s *Box) {
	s.m = m
	s.guestID = "box-" + uuid.NewString()
	s.maker = m.parts.Machines
	if s.created.IsZero() {
		s.created = m.now()
	}
	s.callLock = semaphore.NewWeighted(allCalls)
	s.slots = newCallQueue(m.cfg().ParallelCalls, m.cfg().QueueLen)
	s.kernels = map[string]*kernel{}
	s.ready, s.terminated, s.freed = make(chan struct{}), make(chan struct{}), make(chan struct{})
	s.boot, s.cancelBoot = context.WithCancelCause(m.base)
}

// usage counts boxes.
type usage struct {
	sessions, contexts, memoryMB int
	boxes                        map[Owner]int
	ownersMB                     map[Owner]int
}

func newUsage() *usage { return &usage{boxes: map[Owner]int{}, ownersMB: map[Owner]int{}} }

func (u *usage) add(s *Box, n int) {
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
func (m *Manager) usageLocked() *usage {
	u := newUsage()
	for _, s := range m.boxes {
		u.add(s, 1)
	}
	for s := range m.leaving {
		u.add(s, 1)
	}
	return u
}

// crowdedLocked reports whether what is there, and what is still being freed, is
// over a global limit.
func (m *Manager) crowdedLocked() bool {
	u := m.usageLocked()
	return u.sessions > m.cfg().MaxSessions || u.contexts > m.cfg().MaxContexts ||
		m.cfg().MaxTotalMemoryMB > 0 && u.memoryMB > m.cfg().MaxTotalMemoryMB
}

// planLocked chooses the boxes that have to go for s.
func (m *Manager) planLocked(op string, s *Box) ([]*Box, error) {
	u, owner := newUsage(), s.key.owner
	var idle []*Box
	for _, o := range m.boxes {
		u.add(o, 1)
		if !o.busyLocked() {
			idle = append(idle, o)
		}
	}
	u.add(s, 1)

	var victims []*Box
	makeRoom := func(over func() bool, fits func(*Box) bool) bool {
		for over() {
			v := victim(idle, owner, u, func(o *Box) bool { return fits(o) && (o.key.owner == owner || m.canHibernateLocked(o)) })
			if !m.cfg().Evict || v == nil {
				return false
			}
			victims = append(victims, v)
			u.add(v, -1)
			idle = slices.DeleteFunc(idle, func(o *Box) bool { return o == v })
		}
		return true
	}
	own := func(o *Box) bool { return o.key.owner == owner }

	c := m.cfg()
	kind, max, n := "Sessions", c.MaxSessions, &u.sessions
	if s.key.kind == KindContext {
		kind, max, n = "Contexts", c.MaxContexts, &u.contexts
	}
	switch {
	case !makeRoom(func() bool { return c.MaxPerOwner > 0 && u.boxes[owner] > c.MaxPerOwner }, own):
		return nil, m.limitError(op, "per_owner", fmt.Sprintf("Limit per user exceeded: %d >= %d", u.boxes[owner]-1, c.MaxPerOwner))
	case !makeRoom(func() bool { return c.MaxMemoryPerOwnerMB > 0 && u.ownersMB[owner] > c.MaxMemoryPerOwnerMB }, own):
		return nil, m.limitError(op, "memory_per_owner", fmt.Sprintf("Memory limit per user exceeded: %dMB >= %dMB", u.ownersMB[owner], c.MaxMemoryPerOwnerMB))
	case !makeRoom(func() bool { return *n > max }, func(o *Box) bool { return o.key.kind == s.key.kind }):
		return nil, m.limitError(op, "count", fmt.Sprintf("%s limit exceeded: %d >= %d", kind, *n-1, max))
	case !makeRoom(func() bool { return c.MaxTotalMemoryMB > 0 && u.memoryMB > c.MaxTotalMemoryMB }, func(*Box) bool { return true }):
		return nil, m.limitError(op, "memory", fmt.Sprintf("Memory limit exceeded: %dMB >= %dMB", u.memoryMB, c.MaxTotalMemoryMB))
	}
	return victims, nil
}

// canHibernateLocked reports whether a box that is retired is there again for the
// next call on its id.
func (m *Manager) canHibernateLocked(s *Box) bool { return s.claim != nil && m.hibernates() }

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
			cmp.Compare(o.use, best.use)) < 0 {
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

func (m *Manager) limitError(op, limit, msg string) error {
	hint := "Nothing can make room: all of it is in use. Try again when a running call has ended, or stop what is no longer needed."
	if !m.cfg().Evict {
		hint = "Eviction is off on this server: stop what is no longer needed."
	}
	return &Error{Code: CodeLimit, Op: op, Msg: msg, Hint: hint, Context: map[string]string{"limit": limit}}
}

func (m *Manager) noInterpreter(op, language string) error {
	e := &Error{
		Code: CodeUnsupportedLanguage, Op: op, Context: map[string]string{"language": clip(language, 64)},
		Msg: fmt.Sprintf("Unsupported language: %s. Must be 'python' or 'javascript'", clip(language, 64)),
	}
	if language == Python || language == JavaScript {
		e.Msg = fmt.Sprintf("Unsupported language: %s. The image of this server has no interpreter for it", language)
		e.Hint = "Use the other language, or have the operator install the interpreter."
	}
	return e
}
