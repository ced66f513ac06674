package sandbox

import (
	"context"
	"fmt"

	"github.com/google/uuid"
)

// maxID bounds the id of a session, in bytes.
const maxID = 128

// Acquired says how a box came to the caller.
type Acquired struct {
	Created bool       // this call made it
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
	if want.ID == "" {
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

	m.mu.Lock()
	k := key{owner, KindSession, want.ID}
	s, acq, err := m.acquireLocked(ctx, op, k, func(s *Sandbox) error {
		return s.matches(op, template, flavor)
	}, func() *Sandbox {
		return &Sandbox{template: orPython(template), flavor: m.orDefault(flavor)}
	})
	m.mu.Unlock()
	if err != nil {
		return nil, Acquired{}, err
	}
	return m.await(ctx, op, s, acq)
}

// acquireLocked finds or makes the box of a key and holds it for the caller.
func (m *Manager) acquireLocked(ctx context.Context, op string, k key, check func(*Sandbox) error, make func() *Sandbox) (*Sandbox, Acquired, error) {
	if ctx.Err() != nil {
		return nil, Acquired{}, cancelled(op, k, context.Cause(ctx))
	}
	if err := m.openLocked(op); err != nil {
		return nil, Acquired{}, err
	}
	s := m.boxes[k]
	if s != nil && m.expiredLocked(s) {
		m.expireLocked(s)
		s = nil
	}
	var acq Acquired
	if s == nil {
		s = make()
		s.key = k
		acq.Created = true
		acq.Lost = m.graves.get(k)
		if err := m.admitLocked(op, s); err != nil {
			return nil, Acquired{}, err
		}
	} else if err := check(s); err != nil {
		return nil, Acquired{}, err
	}
	acq.hold = m.holdLocked(ctx, s)
	return s, acq, nil
}

// await waits for the start of a held box.
func (m *Manager) await(ctx context.Context, op string, s *Sandbox, acq Acquired) (*Sandbox, Acquired, error) {
	select {
	case <-s.ready:
	case <-ctx.Done():
		acq.Release()
		return nil, Acquired{}, s.cancelled(op, context.Cause(ctx))
	}
	if s.startErr != nil {
		acq.Release()
		return nil, Acquired{}, s.startErr
	}
	return s, acq, nil
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
		return m.cfg.DefaultFlavor
	}
	return f
}
