package sandbox

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/glovebox-dev/glovebox/internal/snapshot"
	"github.com/glovebox-dev/glovebox/internal/tracing"
)

// maxID bounds the id of a session, in bytes.
const maxID = 128

// Acquired says how a box came to the caller.
type Acquired struct {
	Created bool       // this call made it
	Woken   *Woken     // this call woke it; nil otherwise
	Lost    *Tombstone // an earlier box with this id ended and its state is gone

	hold *hold
}

// Release lets the box be evicted or expire again. Until then, or until the
// first call into the box begins or the context of the acquiring call ends, it
// is not. Release may be called again.
func (a Acquired) Release() {
	if a.hold != nil {
		a.hold.release()
	}
}

// Session returns the owner's session, booted. Without an id it is a new one; an
// unknown id is a new one with that id; one that has ended is made anew under
// its id, with Acquired.Lost. Concurrent callers of one new id share one box. A
// caller whose ctx ends leaves; the boot goes on for the others.
//
// Errors: CodeInvalid (bad id, or another template or flavor than the session
// has), CodeUnsupportedLanguage, CodeLimit, CodeNotReady, CodeStartFailed,
// CodeGone (stopped while starting), CodeCancelled.
func (m *Manager) Session(ctx context.Context, owner Owner, want SessionWant) (*Sandbox, Acquired, error) {
	const op = "create session"
	isNew := want.ID == ""
	if isNew {
		want.ID = uuid.NewString()
	} else if err := checkID(op, want.ID); err != nil {
		return nil, Acquired{}, err
	}
	template, err := ParseTemplate(string(want.Template))
	if err != nil {
		return nil, Acquired{}, err
	}
	flavor, err := ParseFlavor(string(want.Flavor))
	if err != nil {
		return nil, Acquired{}, err
	}

	k := key{owner, KindSession, want.ID}
	if isNew {
		s, acq, err := m.admit(ctx, op, &Sandbox{key: k, template: orPython(template), flavor: m.orDefault(flavor)})
		if err != nil {
			return nil, Acquired{}, err
		}
		return m.await(ctx, op, s, acq)
	}
	s, acq, err := m.acquire(ctx, search{
		op: op, key: k,
		check: func(s *Sandbox) error { return s.matches(op, template, flavor) },
		make:  func() *Sandbox { return &Sandbox{template: orPython(template), flavor: m.orDefault(flavor)} },
	})
	if err != nil {
		return nil, Acquired{}, err
	}
	return m.await(ctx, op, s, acq)
}

// search is the looking for a box by its key.
type search struct {
	op    string
	key   key
	check func(*Sandbox) error // whether it is what the caller wants; nil: it is
	make  func() *Sandbox      // a new one, if there is none; nil: none is made

	looked  bool              // for records
	records []snapshot.Record // of the owner's boxes on disk

	// What has to happen before the next round, at most one:
	retiring *Sandbox // it goes to disk
	crowded  error    // it can be woken when there is room for it
}

const (
	// wakeWait is how long a call on a hibernated box waits for room when all
	// boxes in memory are in use.
	wakeWait = 30 * time.Second
	// wakePause is between two looks for room; waking takes 100 ms and more.
	wakePause = 20 * time.Millisecond
)

// acquire finds a box, living or hibernated, and holds it for the caller, or
// makes it. The box is nil if there is none and none is made.
func (m *Manager) acquire(ctx context.Context, f search) (*Sandbox, Acquired, error) {
	deadline := time.NewTimer(wakeWait)
	defer deadline.Stop()
	for {
		f.retiring, f.crowded = nil, nil
		m.mu.Lock()
		s, acq, err := m.acquireLocked(ctx, &f)
		m.mu.Unlock()
		var next <-chan struct{}
		var pause <-chan time.Time
		switch {
		case s != nil || err != nil:
			return s, acq, err
		case f.retiring != nil:
			next = f.retiring.freed
		case f.crowded != nil:
			pause = time.After(wakePause)
		case f.looked:
			return nil, Acquired{}, nil
		default:
			f.records, f.looked = m.onDisk(f.key.owner, f.key.kind), true
			continue
		}
		f.looked = false
		select {
		case <-next:
		case <-pause:
		case <-deadline.C:
			if f.crowded != nil {
				return nil, Acquired{}, f.crowded
			}
			deadline.Reset(wakeWait)
		case <-ctx.Done():
			return nil, Acquired{}, cancelled(f.op, f.key, context.Cause(ctx))
		}
	}
}

// acquireLocked is one round of acquire.
func (m *Manager) acquireLocked(ctx context.Context, f *search) (s *Sandbox, acq Acquired, err error) {
	if ctx.Err() != nil {
		return nil, acq, cancelled(f.op, f.key, context.Cause(ctx))
	}
	if err := m.openLocked(f.op); err != nil {
		return nil, acq, err
	}
	if s, err = m.findLocked(f.op, f.key); err != nil {
		return nil, acq, err
	}
	if s != nil && m.expiredLocked(s) {
		m.expireLocked(s)
		s = nil
	}
	switch {
	case s == nil:
		if s, err = m.comeLocked(f, &acq); s == nil || err != nil {
			return nil, acq, err
		}
	case s.stopping > 0 && f.key.kind == KindContext:
		return nil, acq, s.error(CodeBusy, f.op, fmt.Sprintf("Context %s is being stopped", s.key.id), "Create a new one.", nil)
	case f.check != nil:
		if err := f.check(s); err != nil {
			return nil, acq, err
		}
	}
	acq.hold = m.holdLocked(ctx, s)
	return s, acq, nil
}

// comeLocked begins to wake or to make a box that is not in memory; nil without
// an error if something has to happen first.
func (m *Manager) comeLocked(f *search, acq *Acquired) (s *Sandbox, err error) {
	if f.retiring = m.retiringLocked(f.key); f.retiring != nil || !f.looked && m.hibernates() {
		return nil, nil
	}
	r, err := find(f.records, f.key)
	if err != nil {
		return nil, err
	}
	if r != nil {
		if f.check != nil {
			if err := f.check(&Sandbox{m: m, key: f.key, template: Template(r.Template), flavor: Flavor(r.Flavor)}); err != nil {
				return nil, err
			}
		}
		s, acq.Woken, err = m.wakeLocked(f.op, r)
		if CodeOf(err) == CodeLimit && m.cfg().Evict {
			f.crowded = err
			return nil, nil
		}
		if s != nil || err != nil {
			return s, err
		}
	}
	if f.make == nil {
		return nil, nil
	}
	s = f.make()
	s.key = f.key
	acq.Created = true
	acq.Lost = m.graves.get(f.key)
	if err := m.admitLocked(f.op, s); err != nil {
		return nil, err
	}
	return s, nil
}

// await waits for the start of a held box.
func (m *Manager) await(ctx context.Context, op string, s *Sandbox, acq Acquired) (*Sandbox, Acquired, error) {
	if err := s.awaitReady(ctx, acq.Woken != nil); err != nil {
		acq.Release()
		return nil, Acquired{}, s.cancelled(op, err)
	}
	if s.startErr != nil {
		acq.Release()
		return nil, Acquired{}, s.startErr
	}
	if acq.Woken != nil {
		acq.Woken.Rescued = s.Rescued()
	}
	return s, acq, nil
}

// awaitReady waits until the start of the box has ended, well or not. The error is
// the cause of ctx.
func (s *Sandbox) awaitReady(ctx context.Context, woken bool) (err error) {
	select {
	case <-s.ready:
		return nil
	default:
	}
	name := "box start"
	if woken {
		name = "box wake"
	}
	ctx, span := tracing.Start(ctx, name)
	select {
	case <-s.ready:
		span.Set("glovebox.box.source", string(s.Info().Source))
		span.End(s.startErr)
	case <-ctx.Done():
		err = context.Cause(ctx)
		span.End(err)
	}
	return err
}

// matches returns an error if the box is not what a caller wants of it.
func (s *Sandbox) matches(op string, template Template, flavor Flavor) error {
	what, has, want := "template", string(s.template), string(template)
	if template == "" || template == s.template {
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

func orPython(t Template) Template {
	if t == "" {
		return TemplatePython
	}
	return t
}

func (m *Manager) orDefault(f Flavor) Flavor {
	if f == "" {
		return m.cfg().DefaultFlavor
	}
	return f
}
