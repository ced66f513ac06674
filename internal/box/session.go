package box

import (
	"context"
	"fmt"

	"github.com/google/uuid"
)

// maxID bounds the id of a session, in bytes.
const maxID = 128

// Session returns the owner's session, started. Without an id, or with an unknown one, it
// creates a session. It recreates a session that has ended under its id, with Hold.Lost,
// and takes from the ended one what opts leaves open. Concurrent callers with the same new
// id share a box. If the ctx of one ends, the start continues for the others.
//
// Errors: CodeInvalid (bad id, another interpreter, template or flavor than the session has, no such named
// template, or a network outside of the policy), CodeUnsupportedLanguage, CodeLimit,
// CodeNotFound (none exists, with opts.Existing), CodeNotReady, CodeStartFailed, CodeGone
// (stopped while starting), CodeCancelled.
func (m *Manager) Session(ctx context.Context, owner Owner, opts SessionOptions) (*Box, Hold, error) {
	const op = "create session"
	isNew := opts.ID == ""
	if isNew {
		opts.ID = uuid.NewString()
	} else if err := checkID(op, opts.ID); err != nil {
		return nil, Hold{}, err
	}
	interpreter, err := ParseInterpreter(string(opts.Interpreter))
	if err != nil {
		return nil, Hold{}, err
	}
	flavor, err := ParseFlavor(string(opts.Flavor))
	if err != nil {
		return nil, Hold{}, err
	}

	sp := spec{key: key{owner, KindSession, opts.ID}, interpreter: m.orUsual(interpreter), flavor: m.orDefault(flavor)}
	var errNew error // why there can be no new box
	if opts.Template != "" {
		sp.interpreter, sp.flavor = interpreter, flavor
		errNew = m.fromNamed(op, &sp, opts.Template)
	}
	network, err := m.narrow(op, &sp, opts.Network)
	switch {
	case err != nil && network == nil: // unreadable, whatever the session has
		return nil, Hold{}, err
	case errNew == nil:
		errNew = err
	}
	if isNew {
		if errNew != nil {
			return nil, Hold{}, errNew
		}
		if opts.Existing {
			return nil, Hold{}, m.notFound(op, sp.key)
		}
		sp.untold = true
		return m.create(ctx, op, sp)
	}
	q := search{op: op, key: sp.key, check: func(s *spec) error {
		if err := s.matches(op, interpreter, opts.Template, flavor); err != nil {
			return err
		}
		return s.hasNetwork(op, network)
	}}
	if errNew == nil && !opts.Existing {
		q.make = func() spec { return m.revived(op, sp, interpreter, opts.Template, flavor) }
	}
	b, hold, err := m.acquire(ctx, q)
	switch {
	case err != nil || b != nil: // a session that exists needs neither its template nor the policy it was made within
	case opts.Existing:
		err = m.notFound(op, sp.key)
	default:
		err = errNew
	}
	if err != nil {
		return nil, Hold{}, err
	}
	return b.awaitReporting(ctx, op, hold)
}

// matches returns an error if the box does not have the requested properties.
func (s *spec) matches(op string, interpreter Interpreter, template string, flavor Flavor) error {
	if template != "" && template != s.template {
		has := s.template
		if has == "" {
			has = string(s.interpreter)
		}
		e := s.error(CodeInvalid, op, fmt.Sprintf("Session %s came from the template '%s', not '%s'", s.key.id, has, clip(template, 64)),
			"Leave out the template, or start a new session.", nil)
		e.Context["field"] = "template"
		return e
	}
	what, has, want := "language", s.interpreter.Language(), interpreter.Language()
	if interpreter == "" || interpreter == s.interpreter {
		if flavor == "" || flavor == s.flavor {
			return nil
		}
		what, has, want = "flavor", string(s.flavor), string(flavor)
	}
	e := s.error(CodeInvalid, op,
		fmt.Sprintf("Session %s has the %s '%s', not '%s'", s.key.id, what, has, want),
		fmt.Sprintf("Leave out the %s, or use another session.", what), nil)
	e.Context["field"] = what
	return e
}

func checkID(op, id string) error {
	ok := len(id) <= maxID
	for i := 0; i < len(id) && ok; i++ {
		ok = wordByte(id[i])
	}
	if ok {
		return nil
	}
	return &Error{
		Code: CodeInvalid, Op: op,
		Msg:     fmt.Sprintf("Invalid session id: %q", clip(id, 64)),
		Hint:    fmt.Sprintf("An id has 1 to %d letters, digits, '.', '_' and '-'. Leave it out for a new session.", maxID),
		Context: map[string]string{"field": "session_id"},
	}
}

func wordByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '.' || b == '_' || b == '-'
}

// orUsual returns the interpreter of a box for which none was asked: that of JavaScript
// on a server without Python.
func (m *Manager) orUsual(t Interpreter) Interpreter {
	if t != "" {
		return t
	}
	have := m.parts.Machines.Interpreters
	if have[Python] == "" && have[JavaScript] != "" {
		return InterpreterNode
	}
	return InterpreterPython
}
