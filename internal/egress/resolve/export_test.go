package resolve

// Entries returns how many answers are kept.
func (r *Resolver) Entries() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.entries)
}
