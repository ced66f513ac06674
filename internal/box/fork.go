package box

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/google/uuid"
)

// ForkOptions describes the copy of a box. Empty fields: a name is the original's
// with " copy", an id is a new one.
type ForkOptions struct {
	ID          string // sessions only
	Name        string // contexts only
	Description string // contexts only; the original's if empty
}

// Fork makes a copy of an owner's box (id or, for a context, unique name): memory,
// variables, files and background processes. Both go on apart. It waits for calls
// that are under way in the original, which then stands still for a moment. A
// hibernated box is woken.
//
// Errors: CodeNotFound, CodeUnsupported, else as Session.
func (m *Manager) Fork(ctx context.Context, owner Owner, kind Kind, id string, want ForkOptions) (*Box, error) {
	op := "fork " + string(kind)
	if !m.parts.Machines.Snapshots() {
		return nil, unsupported(op)
	}
	child := &Box{key: newContextKey(owner)}
	if kind == KindSession {
		child.key, child.chosen = key{owner, KindSession, want.ID}, want.ID != ""
		if want.ID == "" {
			child.key.id = uuid.NewString()
		} else if err := checkID(op, want.ID); err != nil {
			return nil, err
		}
	} else if err := checkTexts(op, "context", want.Name, want.Description); err != nil {
		return nil, err
	}
	parent, acq, err := m.existing(ctx, op, key{owner, kind, id})
	if err != nil {
		return nil, err
	}
	defer acq.Release()
	if kind == KindSession {
		if err := m.unused(op, child.key); err != nil {
			return nil, err
		}
	} else {
		child.name, child.desc = want.Name, want.Description
		if child.name == "" {
			child.name = copyName(parent.name)
		}
		if child.desc == "" {
			child.desc = parent.desc
		}
	}
	child.template, child.flavor, child.origin = parent.template, parent.flavor, origin{parent: parent}
	child, held, err := m.admit(ctx, op, child)
	if err != nil {
		return nil, err
	}
	child, held, err = m.await(ctx, op, child, held)
	held.Release()
	return child, err
}

// existing acquires a box that there is, living or hibernated.
func (m *Manager) existing(ctx context.Context, op string, k key) (*Box, Lease, error) {
	s, acq, err := m.acquire(ctx, search{op: op, key: k})
	if err != nil {
		return nil, Lease{}, err
	}
	if s == nil {
		if k.kind == KindContext {
			return nil, Lease{}, m.contextNotFound(op, k.owner, k.id)
		}
		return nil, Lease{}, m.sessionNotFound(op, k)
	}
	return m.await(ctx, op, s, acq)
}

func (m *Manager) sessionNotFound(op string, k key) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := &Error{
		Code: CodeNotFound, Op: op, Msg: "Session not found: " + clip(k.id, maxID), Context: map[string]string{"session_id": clip(k.id, maxID)},
		Hint: "List the sessions with get_sessions.",
	}
	if t := m.tombstones.get(k); t != nil {
		e.Msg += "; " + t.Explain(m.now())
		e.Context["reason"] = string(t.Reason)
	}
	return e
}

// unused returns an error if a session of that id is there.
func (m *Manager) unused(op string, k key) error {
	r, err := find(m.onDisk(k.owner, k.kind), k)
	there := r != nil && !(r.Leased && r.Own) && (r.Leased || !r.Saved.IsZero())
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && !there && m.boxes[k] == nil && m.leavingLocked(k) == nil {
		return nil
	}
	return &Error{
		Code: CodeInvalid, Op: op, Msg: fmt.Sprintf("Session %s exists already", k.id), Hint: "Leave the new id out, or choose another.",
		Context: map[string]string{"field": "new_session_id", "session_id": k.id},
	}
}

// copyName is the name of the copy of a context, cut to what a name may have.
func copyName(name string) string {
	const suffix = " copy"
	if name == "" {
		return ""
	}
	if len(name) > maxName-len(suffix) {
		name = name[:maxName-len(suffix)]
	}
	return name + suffix
}

// checkTexts checks what a client may say of a copy or snapshot; both may be
// empty.
func checkTexts(op, what, name, description string) error {
	if name != "" {
		if err := checkName(op, what, name); err != nil {
			return err
		}
	}
	return checkDescription(op, description)
}

func checkDescription(op, description string) error {
	if len(description) <= maxDescription && utf8.ValidString(description) {
		return nil
	}
	return &Error{
		Code: CodeInvalid, Op: op, Msg: fmt.Sprintf("Invalid description: %d bytes, at most %d bytes of UTF-8", len(description), maxDescription),
		Context: map[string]string{"field": "description"},
	}
}

func unsupported(op string) error {
	return &Error{
		Code: CodeUnsupported, Op: op, Msg: "This server cannot " + op + ": its engine or its state directory allows no snapshots",
		Hint: "The operator finds out more with the doctor command.",
	}
}
