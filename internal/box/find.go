package box

// Find returns the kind of the owner's box that callers name id, if there is one,
// in memory or on disk: a session of that id, else a context of that id or name. It
// reports false if there is none. The box may end before the caller acquires it.
func (m *Manager) Find(owner Owner, id string) (Kind, bool) {
	session, context := key{owner, KindSession, id}, key{owner, KindContext, id}
	if kind, ok := m.findInMemory(session, context); ok {
		return kind, true
	}
	records := m.onDisk(owner, "")
	for _, k := range []key{session, context} {
		for i := range records {
			r := &records[i]
			if r.Kind == string(k.kind) && (r.BoxID == id || k.kind == KindContext && r.Name == id) {
				return k.kind, true
			}
		}
	}
	return "", false
}

func (m *Manager) findInMemory(session, context key) (Kind, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range []key{session, context} {
		// More than one context of a name is an error that acquiring it reports.
		if s, err := m.findLocked("", k); s != nil || err != nil || m.leavingLocked(k) != nil {
			return k.kind, true
		}
	}
	return "", false
}
