package box

import "fmt"

// usage counts boxes.
type usage struct {
	sessions, contexts, memoryMB int
	boxes                        map[Owner]int
	ownersMB                     map[Owner]int
}

func newUsage() *usage { return &usage{boxes: map[Owner]int{}, ownersMB: map[Owner]int{}} }

func (u *usage) add(s *spec, n int) {
	if s.key.kind == KindSession {
		u.sessions += n
	} else {
		u.contexts += n
	}
	mb := n * s.flavor.Limits().MemoryMB
	u.memoryMB += mb
	u.boxes[s.key.owner] += n
	u.ownersMB[s.key.owner] += mb
}

// addReplacement counts the machine that is being made to replace that of a live box, for
// which both machines take memory. Its owner has the larger one of both.
func (u *usage) addReplacement(s, replaced *spec) {
	mb := s.flavor.Limits().MemoryMB
	u.memoryMB += mb
	u.ownersMB[s.key.owner] += max(0, mb-replaced.flavor.Limits().MemoryMB)
}

// liveUsageLocked counts the boxes in memory, without those that are leaving it.
func (r *registry) liveUsageLocked() *usage {
	u := newUsage()
	for _, s := range r.boxes {
		u.add(&s.spec, 1)
	}
	for s, replaced := range r.replacements {
		u.addReplacement(&s.spec, &replaced.spec)
	}
	return u
}

// usageLocked counts the boxes together with those whose resources are still being
// freed.
func (r *registry) usageLocked() *usage {
	u := r.liveUsageLocked()
	for s := range r.freeing {
		u.add(&s.spec, 1)
	}
	return u
}

// leavingLocked returns a channel for each box that is leaving memory, closed when it has
// left or stays after all; none if all boxes fit beside them. An evicted box occupies
// memory until it is freed.
func (r *registry) leavingLocked() []<-chan struct{} {
	if !r.overLimitLocked() {
		return nil
	}
	var leaving []<-chan struct{}
	for s := range r.freeing {
		leaving = append(leaving, s.freed)
	}
	return leaving
}

// overLimitLocked reports whether the boxes, those included whose resources are still
// being freed, exceed a global limit.
func (r *registry) overLimitLocked() bool {
	u := r.usageLocked()
	return u.sessions > r.cfg().MaxSessions || u.contexts > r.cfg().MaxContexts ||
		r.cfg().MaxTotalMemoryMB > 0 && u.memoryMB > r.cfg().MaxTotalMemoryMB
}

// roomFor returns an error if a box would not be admitted.
func (r *registry) roomFor(op string, s *spec) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.planLocked(op, s, nil)
	return err
}

func (e *env) limitError(op, limit, msg string) error {
	hint := "No idle box may be evicted for this one. Try again when a running call has ended, or stop what is no longer needed."
	if !e.cfg().Evict {
		hint = "Eviction is off on this server: stop what is no longer needed."
	}
	return &Error{Code: CodeLimit, Op: op, Msg: msg, Hint: hint, Context: map[string]string{"limit": limit}}
}

func (e *env) noInterpreter(op, language string) error {
	err := &Error{
		Code: CodeUnsupportedLanguage, Op: op, Context: map[string]string{"language": clip(language, 64)},
		Msg: fmt.Sprintf("Unsupported language: %s. Must be 'python' or 'javascript'", clip(language, 64)),
	}
	if language == Python || language == JavaScript {
		err.Msg = fmt.Sprintf("Unsupported language: %s. The image of this server has no interpreter for it", language)
		err.Hint = "Use the other language, or have the operator install the interpreter."
	}
	return err
}
