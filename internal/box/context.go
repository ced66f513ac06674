package box

import (
	"context"
	"fmt"
)

const (
	// DefaultContextID is what callers may pass in place of the id of their default
	// context; see Manager.DefaultContext.
	DefaultContextID = "default"

	maxName        = 64
	maxDescription = 4096
)

// CreateContext boots a new context "ctx-<uuid>" and proves that its interpreter
// starts. A name that one context of the owner has is an alias of its id.
//
// Errors: as Session. CodeInvalid has Context["field"], "name" for a bad name.
func (m *Manager) CreateContext(ctx context.Context, owner Owner, want ContextOptions) (*Box, error) {
	const op = "create context"
	if err := checkName(op, "context", want.Name); err != nil {
		return nil, err
	}
	template, err := ParseLanguage(want.Language)
	if err != nil {
		return nil, err
	}
	flavor, err := ParseFlavor(string(want.Flavor))
	if err != nil {
		return nil, err
	}
	if err := checkDescription(op, want.Description); err != nil {
		return nil, err
	}

	s, acq, err := m.admit(ctx, op, &Box{
		key: newContextKey(owner), name: want.Name, desc: want.Description, template: template, flavor: m.orDefault(flavor),
	})
	if err != nil {
		return nil, err
	}
	s, acq, err = m.await(ctx, op, s, acq)
	acq.Release()
	return s, err
}

// Context returns the owner's context of that id or unique name.
//
// Errors: CodeNotFound (the text says why it ended, if it did), else as Session.
func (m *Manager) Context(ctx context.Context, owner Owner, idOrName string) (*Box, Lease, error) {
	return m.existing(ctx, "find context", key{owner, KindContext, idOrName})
}

func newContextKey(owner Owner) key { return key{owner, KindContext, newContextID()} }

// admit begins the start of a new box and holds it for the caller.
func (m *Manager) admit(ctx context.Context, op string, s *Box) (*Box, Lease, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return nil, Lease{}, cancelled(op, s.key, context.Cause(ctx))
	}
	if err := m.openLocked(op); err != nil {
		return nil, Lease{}, err
	}
	if err := m.admitLocked(op, s); err != nil {
		return nil, Lease{}, err
	}
	return s, Lease{Created: true, pin: m.pinLocked(ctx, s)}, nil
}

// findLocked returns the living box of a key or, for a context, of a unique
// name; nil if there is none.
func (m *Manager) findLocked(op string, k key) (*Box, error) {
	if s := m.boxes[k]; s != nil || k.kind != KindContext {
		return s, nil
	}
	var found *Box
	for o, s := range m.boxes {
		if o.owner != k.owner || o.kind != KindContext || s.name != k.id {
			continue
		}
		if found != nil {
			return nil, ambiguous(op, k.id)
		}
		found = s
	}
	return found, nil
}

func ambiguous(op, name string) error {
	return &Error{
		Code: CodeInvalid, Op: op, Msg: fmt.Sprintf("Ambiguous context name: more than one context is named '%s'", clip(name, maxName)),
		Hint: "Use the context_id.", Context: map[string]string{"field": "context_id"},
	}
}

func (m *Manager) contextNotFound(op string, owner Owner, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := &Error{
		Code: CodeNotFound, Op: op, Msg: "Context not found: " + clip(id, maxID),
		Hint:    "List the contexts, or create a new one.",
		Context: map[string]string{"context_id": clip(id, maxID)},
	}
	t := m.tombstones.get(key{owner, KindContext, id})
	if t == nil {
		t = m.tombstones.named(owner, id)
	}
	if t != nil {
		e.Msg += "; " + t.Explain(m.now()) + "; create a new one"
		e.Hint = "Create a new context; the variables of the old one are gone."
		e.Context["reason"] = string(t.Reason)
	}
	return e
}

// checkName checks the name of a context or snapshot.
func checkName(op, what, name string) error {
	ok := name != "" && len(name) <= maxName && name[0] != ' ' && name[len(name)-1] != ' '
	for i := 0; i < len(name) && ok; i++ {
		ok = wordByte(name[i]) || name[i] == ' '
	}
	if ok {
		return nil
	}
	msg := "Invalid " + what + " name: it cannot be empty"
	if name != "" {
		msg = fmt.Sprintf("Invalid %s name: %q", what, clip(name, maxName))
	}
	return &Error{
		Code: CodeInvalid, Op: op, Msg: msg,
		Hint:    fmt.Sprintf("A name has 1 to %d letters, digits, spaces, '.', '_' and '-'.", maxName),
		Context: map[string]string{"field": "name"},
	}
}
