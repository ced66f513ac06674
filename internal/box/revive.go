package box

// revived returns sp, the description of a new session, with the interpreter, template and flavor
// of the lost session of that id, unless its owner stopped that one. The caller asks for
// interpreter, template and flavor, which prevail unless they are empty. If the lost session's named
// template cannot be used, the new one gets only its language and flavor.
func (m *Manager) revived(op string, sp spec, interpreter Interpreter, template string, flavor Flavor) spec {
	t := m.reg.tombstoneOf(sp.key)
	if t == nil || t.Reason == ReasonStopped || template != "" {
		return sp
	}
	had, err := ParseInterpreter(string(t.Interpreter))
	if err != nil || had == "" || interpreter != "" && interpreter != had {
		return sp
	}
	size, err := ParseFlavor(string(t.Flavor))
	if err != nil || size == "" {
		return sp
	}
	if t.Template != "" && (flavor == "" || flavor == size) {
		again := sp
		again.interpreter, again.flavor = had, size
		if m.fromNamed(op, &again, t.Template) == nil {
			if again.limits, err = narrower(op, again.limits, sp.limits); err == nil {
				return again
			}
		}
	}
	if sp.interpreter = had; flavor == "" {
		sp.flavor = size
	}
	return sp
}
