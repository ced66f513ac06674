package box

// revived returns sp, the description of a new session, with the template, language and flavor
// of the lost session of that id, unless its owner stopped that one. The caller asks for
// template, named and flavor, which prevail unless they are empty. If the lost session's named
// template cannot be used, the new one gets only its language and flavor.
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
