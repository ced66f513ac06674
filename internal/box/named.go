package box

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box/catalog"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/plural"
)

// maxListedTemplates bounds the names in an error.
const maxListedTemplates = 10

// listNamed lists the named templates that an owner may use. They are built by the
// operator's commands; boxes have the language and the flavor of their template.
func (m *Manager) listNamed(op string, owner Owner) ([]catalog.Template, error) {
	if m.parts.Catalog == nil {
		return nil, nil
	}
	list, err := m.parts.Catalog.List(string(owner))
	if err != nil {
		m.log.Warn("named templates not listed", logkey.Operation, op, logkey.Error, err)
		return nil, &Error{
			Code: CodeNotReady, Op: op, Msg: "The server is not ready: it cannot list the templates on its disk",
			Hint: "Try again in a moment. If it happens again, the operator finds the reason in the server's log.",
		}
	}
	return list, nil
}

// fromNamed makes sp the description of a box from a named template. The interpreter and the
// flavor of sp are those that the caller asks for, or empty.
func (m *Manager) fromNamed(op string, sp *spec, name string) error {
	list, err := m.listNamed(op, sp.key.owner)
	if err != nil {
		return err
	}
	for _, t := range list {
		if t.Name != name {
			continue
		}
		base, flavor := Interpreter(t.Base), Flavor(t.Flavor)
		if sp.interpreter != "" && sp.interpreter != base {
			return namedMismatch(op, name, "language", base.Language(), sp.interpreter.Language())
		}
		if sp.flavor != "" && sp.flavor != flavor {
			return namedMismatch(op, name, "flavor", string(flavor), string(sp.flavor))
		}
		sp.interpreter, sp.template, sp.flavor, sp.limits, sp.origin = base, t.Name, flavor, t.Limits, origin{template: t.ID}
		return nil
	}
	return noSuchTemplate(op, name, list)
}

func namedMismatch(op, name, what, has, want string) error {
	return &Error{
		Code: CodeInvalid, Op: op, Msg: fmt.Sprintf("Template %s has the %s '%s', not '%s'", name, what, has, want),
		Hint: fmt.Sprintf("Leave out the %s, or use another template.", what), Context: map[string]string{"field": what},
	}
}

// noSuchTemplate is the error for an unknown name. list has the templates that there are.
func noSuchTemplate(op, name string, list []catalog.Template) error {
	names := []string{string(InterpreterPython), string(InterpreterNode)}
	for _, t := range list[:min(len(list), maxListedTemplates)] {
		names = append(names, t.Name)
	}
	hint := "The templates are: " + strings.Join(names, ", ")
	if more := len(list) - maxListedTemplates; more > 0 {
		hint += fmt.Sprintf(", and %s", plural.N(more, "other"))
	}
	return &Error{
		Code: CodeInvalid, Op: op, Msg: "Template not found: " + clip(name, maxName),
		Hint:    hint + ". The user can build one with: glovebox template build",
		Context: map[string]string{"field": "template"},
	}
}

// restoreNamed makes a machine of a named template. If its memory cannot be restored, the
// new box gets the files that are stored beside it, if there are any.
func (f *machineFactory) restoreNamed(ctx context.Context, b *Box) (startedMachine, error) {
	none := startedMachine{source: SourceCold}
	dir, release, err := f.parts.Catalog.Read(b.origin.template)
	switch {
	case errors.Is(err, catalog.ErrNotFound), errors.Is(err, catalog.ErrInUse): // it was replaced just now
		return none, fmt.Errorf("template %s was replaced or removed: %w", b.template, err)
	case err != nil:
		return none, err
	}
	defer release()
	made, err := f.restore(ctx, b, dir, true)
	made.source = SourceCold
	if !unusable(err) {
		return made, err
	}
	if _, noFiles := readHomeInfo(dir); noFiles != nil {
		return none, &unfitError{b.template, err}
	}
	return f.freshWithFiles(ctx, b, dir, err)
}

// unfitError is the error of a named template that this server cannot restore as it is.
type unfitError struct {
	name  string
	cause error
}

func (e *unfitError) Error() string {
	return fmt.Sprintf("template %s does not fit this version of Glovebox, this machine or the volumes of this server: %v; %s", e.name, e.cause, e.remedy())
}

func (e *unfitError) Unwrap() error { return e.cause }

// remedy says what the operator can do.
func (e *unfitError) remedy() string {
	return "build it again with the server's settings, such as its volumes: glovebox template build " + e.name
}

// hint tells the model what happened, since only the operator can do anything.
func (e *unfitError) hint() string {
	return fmt.Sprintf("The template %s cannot be restored on this server: %s. The user can %s", e.name, mismatch(e.cause), e.remedy())
}
