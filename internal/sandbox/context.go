package sandbox

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/google/uuid"
)

const (
	// DefaultContextID is the id and name of the context that Context makes for
	// callers that name none.
	DefaultContextID = "default"

	maxName        = 64
	maxDescription = 4096
)

// CreateContext boots a new context "ctx-<uuid>" and proves that its interpreter
// starts. A name that one context of the owner has is an alias of its id.
//
// Errors: as Session. CodeInvalid has Context["field"], "name" for a bad name.
func (m *Manager) CreateContext(ctx context.Context, owner Owner, want ContextWant) (*Sandbox, error) {
	const op = "create context"
	if err := checkName(op, want.Name); err != nil {
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
	if len(want.Description) > maxDescription || !utf8.ValidString(want.Description) {
		return nil, &Error{
			Code: CodeInvalid, Op: op, Msg: fmt.Sprintf("Invalid description: %d bytes, at most %d bytes of UTF-8", len(want.Description), maxDescription),
			Context: map[string]string{"field": "description"},
		}
	}

	m.mu.Lock()
	k := key{owner, KindContext, "ctx-" + uuid.NewString()}
	s, acq, err := m.acquireLocked(ctx, op, k, nil, func() *Sandbox {
		return &Sandbox{name: want.Name, desc: want.Description, template: template, flavor: m.orDefault(flavor)}
	})
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	s, acq, err = m.await(ctx, op, s, acq)
	acq.Release()
	return s, err
}

// Context returns the owner's context of that id or unique name. An empty id
// means the owner's default context, made if missing, if the configuration
// allows it (else CodeInvalid).
//
// Errors: CodeNotFound (the text says why it ended, if it did), else as Session.
func (m *Manager) Context(ctx context.Context, owner Owner, idOrName string) (*Sandbox, Acquired, error) {
	const op = "find context"
	m.mu.Lock()
	s, acq, err := m.contextLocked(ctx, op, owner, idOrName)
	m.mu.Unlock()
	if err != nil {
		return nil, Acquired{}, err
	}
	return m.await(ctx, op, s, acq)
}

func (m *Manager) contextLocked(ctx context.Context, op string, owner Owner, id string) (*Sandbox, Acquired, error) {
	if id == "" && !m.cfg.DefaultContext {
		return nil, Acquired{}, &Error{
			Code: CodeInvalid, Op: op, Msg: "Missing context_id: this server has no default context",
			Hint: "Create a context first and pass its id.", Context: map[string]string{"field": "context_id"},
		}
	}
	if err := m.openLocked(op); err != nil {
		return nil, Acquired{}, err
	}
	s, err := m.findLocked(op, key{owner, KindContext, id})
	if err != nil {
		return nil, Acquired{}, err
	}
	if s != nil && m.expiredLocked(s) {
		m.expireLocked(s)
		s = nil
	}
	switch {
	case s != nil:
		if s.stopping > 0 {
			return nil, Acquired{}, s.error(CodeBusy, op, fmt.Sprintf("Context %s is being stopped", s.key.id), "Create a new one.", nil)
		}
		return m.acquireLocked(ctx, op, s.key, func(*Sandbox) error { return nil }, nil)
	case m.cfg.DefaultContext && (id == "" || id == DefaultContextID):
		return m.acquireLocked(ctx, op, key{owner, KindContext, DefaultContextID}, func(*Sandbox) error { return nil }, func() *Sandbox {
			return &Sandbox{name: DefaultContextID, desc: "Made for code without a context_id", template: TemplatePython, flavor: m.cfg.DefaultFlavor}
		})
	}
	return nil, Acquired{}, m.contextNotFoundLocked(op, owner, id)
}

// findLocked returns the living box of a key or, for a context, of a unique
// name; nil if there is none.
func (m *Manager) findLocked(op string, k key) (*Sandbox, error) {
	if k.kind == KindContext && k.id == "" {
		k.id = DefaultContextID
		return m.boxes[k], nil
	}
	if s := m.boxes[k]; s != nil || k.kind != KindContext {
		return s, nil
	}
	var found *Sandbox
	for o, s := range m.boxes {
		if o.owner != k.owner || o.kind != KindContext || s.name != k.id {
			continue
		}
		if found != nil {
			return nil, &Error{
				Code: CodeInvalid, Op: op, Msg: fmt.Sprintf("Ambiguous context name: more than one context is named '%s'", k.id),
				Hint: "Use the context_id.", Context: map[string]string{"field": "context_id"},
			}
		}
		found = s
	}
	return found, nil
}

func (m *Manager) contextNotFoundLocked(op string, owner Owner, id string) error {
	e := &Error{
		Code: CodeNotFound, Op: op, Msg: "Context not found: " + clip(id, maxID),
		Hint:    "List the contexts, or create a new one.",
		Context: map[string]string{"context_id": clip(id, maxID)},
	}
	t := m.graves.get(key{owner, KindContext, id})
	if t == nil {
		t = m.graves.named(owner, id)
	}
	if t != nil {
		e.Msg += "; " + t.Explain(m.now()) + "; create a new one"
		e.Hint = "Create a new context; the variables of the old one are gone."
		e.Context["reason"] = string(t.Reason)
	}
	return e
}

func checkName(op, name string) error {
	ok := name != "" && len(name) <= maxName && name[0] != ' ' && name[len(name)-1] != ' '
	for i := 0; i < len(name) && ok; i++ {
		ok = wordByte(name[i]) || name[i] == ' '
	}
	if ok {
		return nil
	}
	msg := "Invalid context name: it cannot be empty"
	if name != "" {
		msg = fmt.Sprintf("Invalid context name: %q", clip(name, maxName))
	}
	return &Error{
		Code: CodeInvalid, Op: op, Msg: msg,
		Hint:    fmt.Sprintf("A name has 1 to %d letters, digits, spaces, '.', '_' and '-'.", maxName),
		Context: map[string]string{"field": "name"},
	}
}
