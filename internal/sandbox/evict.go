package sandbox

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"
)

// admitLocked reserves room for a new box and begins its start. At a limit the
// least recently used boxes that nobody uses make room, the owner's own first;
// an owner's quota takes the owner's own only. If that is not enough, or
// eviction is off, nothing is ended and the error is CodeLimit.
func (m *Manager) admitLocked(op string, s *Sandbox) error {
	if m.parts.Machines.Interpreters[s.template.Language()] == "" {
		return m.noInterpreter(op, s.template.Language())
	}
	victims, err := m.planLocked(op, s)
	if err != nil {
		return err
	}
	for _, v := range victims {
		m.retireLocked(v, ReasonEvicted, fmt.Sprintf("it was the least recently used one when room for a new %s was needed", s.key.kind))
	}
	// What is ended still holds memory for a moment; no over-commit.
	wait := slices.Collect(maps.Keys(m.dying))

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
func (m *Manager) prepare(s *Sandbox) {
	s.m = m
	s.guestID = "box-" + uuid.NewString()
	if s.created.IsZero() {
		s.created = m.now()
	}
	s.turn = semaphore.NewWeighted(turns)
	s.slots = newGate(m.cfg.ParallelCalls, m.cfg.QueueLen)
	s.kernels = map[string]*kernel{}
	s.ready, s.condemned, s.freed = make(chan struct{}), make(chan struct{}), make(chan struct{})
	s.boot, s.abandon = context.WithCancelCause(m.base)
}

// usage counts boxes.
type usage struct{ sessions, contexts, owner, memoryMB int }

func (u *usage) add(s *Sandbox, owner Owner, n int) {
	if s.key.kind == KindSession {
		u.sessions += n
	} else {
		u.contexts += n
	}
	if s.key.owner == owner {
		u.owner += n
	}
	u.memoryMB += n * s.flavor.Limits().MemoryMB
}

// crowdedLocked reports whether the boxes together with those whose resources
// are still being freed are over a global limit.
func (m *Manager) crowdedLocked() bool {
	var u usage
	for _, s := range m.boxes {
		u.add(s, "", 1)
	}
	for s := range m.dying {
		u.add(s, "", 1)
	}
	return u.sessions > m.cfg.MaxSessions || u.contexts > m.cfg.MaxContexts ||
		m.cfg.MaxTotalMemoryMB > 0 && u.memoryMB > m.cfg.MaxTotalMemoryMB
}

// planLocked chooses the boxes that have to go for s.
func (m *Manager) planLocked(op string, s *Sandbox) ([]*Sandbox, error) {
	var u usage
	var idle []*Sandbox
	for _, o := range m.boxes {
		u.add(o, s.key.owner, 1)
		if !o.busyLocked() {
			idle = append(idle, o)
		}
	}
	slices.SortFunc(idle, func(a, b *Sandbox) int {
		if own := a.key.owner == s.key.owner; own != (b.key.owner == s.key.owner) {
			if own {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.use, b.use)
	})
	u.add(s, s.key.owner, 1)

	var victims []*Sandbox
	makeRoom := func(over func() bool, fits func(*Sandbox) bool) bool {
		for over() {
			i := slices.IndexFunc(idle, fits)
			if !m.cfg.Evict || i < 0 {
				return false
			}
			victims = append(victims, idle[i])
			u.add(idle[i], s.key.owner, -1)
			idle = slices.Delete(idle, i, i+1)
		}
		return true
	}

	c := &m.cfg
	kind, max, n := "Sessions", c.MaxSessions, &u.sessions
	if s.key.kind == KindContext {
		kind, max, n = "Contexts", c.MaxContexts, &u.contexts
	}
	switch {
	case !makeRoom(func() bool { return c.MaxPerOwner > 0 && u.owner > c.MaxPerOwner }, func(o *Sandbox) bool { return o.key.owner == s.key.owner }):
		return nil, m.limitError(op, "per_owner", fmt.Sprintf("Limit per user exceeded: %d >= %d", u.owner-1, c.MaxPerOwner))
	case !makeRoom(func() bool { return *n > max }, func(o *Sandbox) bool { return o.key.kind == s.key.kind }):
		return nil, m.limitError(op, "count", fmt.Sprintf("%s limit exceeded: %d >= %d", kind, *n-1, max))
	case !makeRoom(func() bool { return c.MaxTotalMemoryMB > 0 && u.memoryMB > c.MaxTotalMemoryMB }, func(*Sandbox) bool { return true }):
		return nil, m.limitError(op, "memory", fmt.Sprintf("Memory limit exceeded: %dMB >= %dMB", u.memoryMB, c.MaxTotalMemoryMB))
	}
	return victims, nil
}

func (m *Manager) limitError(op, limit, msg string) error {
	hint := "Nothing can make room: all of it is in use. Try again when a running call has ended, or stop what is no longer needed."
	if !m.cfg.Evict {
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
