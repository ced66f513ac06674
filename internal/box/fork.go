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
// variables, files and background processes. Both then run independently. It waits for calls
// that are under way in the original, which is then paused for a moment. A
// hibernated box is woken. The hold is one of the original: it has the report of what the
// original had lost, which the copy lacks as well. The caller releases it.
//
// Errors: CodeNotFound, CodeUnsupported, else as Session.
func (m *Manager) Fork(ctx context.Context, owner Owner, kind Kind, id string, opts ForkOptions) (*Box, Hold, error) {
	op := "fork " + string(kind)
	if !m.parts.Machines.Snapshots() {
		return nil, Hold{}, unsupported(op)
	}
	child := spec{key: newContextKey(owner)}
	if kind == KindSession {
		child.key, child.chosen = key{owner, KindSession, opts.ID}, opts.ID != ""
		if opts.ID == "" {
			child.key.id = uuid.NewString()
		} else if err := checkID(op, opts.ID); err != nil {
			return nil, Hold{}, err
		}
	} else if err := checkTexts(op, "context", opts.Name, opts.Description); err != nil {
		return nil, Hold{}, err
	}
	// The copy may wait for room while other calls begin and end in the original.
	parent, held, err := m.existing(ctx, search{op: op, key: key{owner, kind, id}, lasting: true})
	if err != nil {
		return nil, Hold{}, err
	}
	if kind == KindSession {
		if err := m.unused(op, child.key); err != nil {
			held.Release()
			return nil, Hold{}, err
		}
	} else {
		child.name, child.desc = opts.Name, opts.Description
		if child.name == "" {
			child.name = copyName(parent.name)
		}
		if child.desc == "" {
			child.desc = parent.desc
		}
	}
	child.interpreter, child.template, child.flavor, child.limits, child.origin = parent.interpreter, parent.template, parent.flavor, parent.limits, origin{parent: parent}
	b, hold, err := m.create(ctx, op, child)
	hold.Release()
	if err != nil {
		held.Release()
		return nil, Hold{}, err
	}
	return b, parent.takeReport(held), nil
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
