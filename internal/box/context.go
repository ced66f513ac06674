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

// CreateContext starts a new context "ctx-<uuid>" and proves that its interpreter
// starts. A name that one context of the owner has is an alias of its id.
//
// Errors: as Session. CodeInvalid may have Context["field"], "name" for a bad name.
func (m *Manager) CreateContext(ctx context.Context, owner Owner, opts ContextOptions) (*Box, error) {
	const op = "create context"
	if err := checkName(op, "context", opts.Name); err != nil {
		return nil, err
	}
	interpreter, err := ParseInterpreter(opts.Language)
	if err != nil {
		return nil, err
	}
	flavor, err := ParseFlavor(string(opts.Flavor))
	if err != nil {
		return nil, err
	}
	if err := checkDescription(op, opts.Description); err != nil {
		return nil, err
	}

	sp := spec{key: newContextKey(owner), name: opts.Name, desc: opts.Description, interpreter: interpreter, flavor: flavor}
	if opts.Template != "" {
		if err := m.fromNamed(op, &sp, opts.Template); err != nil {
			return nil, err
		}
	}
	if _, err := m.narrow(op, &sp, opts.Network); err != nil {
		return nil, err
	}
	sp.interpreter, sp.flavor = m.orUsual(sp.interpreter), m.orDefault(sp.flavor)
	b, hold, err := m.create(ctx, op, sp)
	hold.Release()
	return b, err
}

// Context returns the owner's context of that id or unique name.
//
// Errors: CodeNotFound (the text says why it ended, if it did), else as Session.
func (m *Manager) Context(ctx context.Context, owner Owner, idOrName string) (*Box, Hold, error) {
	b, hold, err := m.existing(ctx, search{op: "find context", key: key{owner, KindContext, idOrName}})
	if err != nil {
		return nil, Hold{}, err
	}
	return b, b.takeReport(hold), nil
}

func newContextKey(owner Owner) key { return key{owner, KindContext, newContextID()} }

func ambiguous(op, name string) error {
	return &Error{
		Code: CodeInvalid, Op: op, Msg: fmt.Sprintf("Ambiguous context name: more than one context is named '%s'", clip(name, maxName)),
		Hint: "Use the context_id.", Context: map[string]string{"field": "context_id"},
	}
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
