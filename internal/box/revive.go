package box

// revived makes sp, the description of a new session, like the session of that id which was
// lost, as far as the caller asks for nothing else: template, named and flavor are what the
// caller asks for, or empty. A session that its owner stopped is not revived. Without its
// named template, a session gets the language and the flavor.
func (m *Manager) revived(op string, sp spec, template Template, named string, flavor Flavor) spec {
	t := m.reg.tombstoneOf(sp.key)
	if t == nil || t.Reason == ReasonStopped || named != "" {
		return sp
	}
	had, err := ParseTemplate(string(t.Template))
	if err != nil || had == "" || template != "" && template != had {
		return sp
	}
	size, err := ParseFlavor(string(t.Flavor))
	if err != nil || size == "" {
		return sp
	}
	if t.Named != "" && (flavor == "" || flavor == size) {
		again := sp
		again.template, again.flavor = had, size
		if m.fromNamed(op, &again, t.Named) == nil {
			if again.limits, err = narrower(op, again.limits, sp.limits); err == nil {
				return again
			}
		}
	}
	if sp.template = had; flavor == "" {
		sp.flavor = size
	}
	return sp
}
