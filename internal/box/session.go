package box

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/tracing"
)

// maxID bounds the id of a session, in bytes.
const maxID = 128

// Lease says how a box came to the caller.
type Lease struct {
	Created bool       // this call made it
	Woken   *Woken     // this call woke it; nil otherwise
	Lost    *Tombstone // an earlier box with this id ended and its state is gone

	pin *pin
}

// Release lets the box be evicted or expire again. Until then, or until the
// first call into the box begins or the context of the acquiring call ends, it
// is not. Release may be called again.
func (a Lease) Release() {
	if a.pin != nil {
		a.pin.release()
	}
}

// Session returns the owner's session, booted. Without an id it is a new one; an
// unknown id is a new one with that id; one that has ended is made anew under
// its id, with Lease.Lost. Concurrent callers of one new id share one box. A
// caller whose ctx ends leaves; the boot goes on for the others.
//
// Errors: CodeInvalid (bad id, or another template or flavor than the session
// has), CodeUnsupportedLanguage, CodeLimit, CodeNotReady, CodeStartFailed,
// CodeGone (stopped while starting), CodeCancelled.
func (m *Manager) Session(ctx context.Context, owner Owner, want SessionOptions) (*Box, Lease, error) {
	const op = "create session"
	isNew := want.ID == ""
	if isNew {
		want.ID = uuid.NewString()
	} else if err := checkID(op, want.ID); err != nil {
		return nil, Lease{}, err
	}
	template, err := ParseTemplate(string(want.Template))
	if err != nil {
		return nil, Lease{}, err
	}
	flavor, err := ParseFlavor(string(want.Flavor))
	if err != nil {
		return nil, Lease{}, err
	}

	k := key{owner, KindSession, want.ID}
	if isNew {
		s, acq, err := m.admit(ctx, op, &Box{key: k, template: orPython(template), flavor: m.orDefault(flavor)})
		if err != nil {
			return nil, Lease{}, err
		}
		return m.await(ctx, op, s, acq)
	}
	s, acq, err := m.acquire(ctx, search{
		op: op, key: k,
		check: func(s *Box) error { return s.matches(op, template, flavor) },
		make:  func() *Box { return &Box{template: orPython(template), flavor: m.orDefault(flavor)} },
	})
	if err != nil {
		return nil, Lease{}, err
	}
	return m.await(ctx, op, s, acq)
}

// search is the looking for a box by its key.
type search struct {
	op    string
	key   key
	check func(*Box) error // whether it is what the caller wants; nil: it is
	make  func() *Box      // a new one, if there is none; nil: none is made
}

const (
	// wakeWait is how long a call on a hibernated box waits for room when all
	// boxes in memory are in use.
	wakeWait = 30 * time.Second
	// handoverWait is how long a call waits for another server to let go of a box.
	// Clients start a new server while the one before is still ending, which the
	// SDKs of MCP kill after 4 s (see docs/clients.md).
	handoverWait = 5 * time.Second
	// lookAgain is the time between two attempts; waking takes 100 ms and more.
	lookAgain = 20 * time.Millisecond
)

// acquire finds a box, living or hibernated, and holds it for the caller, or
// makes it. The box is nil if there is none and none is made.
//
// Errors: CodeHeld if another server process has the box in memory.
func (m *Manager) acquire(ctx context.Context, f search) (*Box, Lease, error) {
	begun := time.Now()
	for {
		try := m.attempt(ctx, &f)
		if try.done {
			return try.box, try.acq, try.err
		}
		limit := wakeWait
		if CodeOf(try.err) == CodeHeld {
			limit = handoverWait
		}
		switch wait := limit - time.Since(begun); {
		case try.next != nil: // it has a bound of its own
			select {
			case <-try.next:
			case <-ctx.Done():
				return nil, Lease{}, cancelled(f.op, f.key, context.Cause(ctx))
			}
		case wait <= 0:
			if try.err == nil {
				try.err = f.key.error(CodeBusy, f.op, "it is being taken up or given up by another call", "Try again in a moment.")
			}
			return nil, Lease{}, try.err
		default:
			select {
			case <-time.After(min(wait, lookAgain)):
			case <-ctx.Done():
				return nil, Lease{}, cancelled(f.op, f.key, context.Cause(ctx))
			}
		}
	}
}

// attempt is one attempt to acquire a box.
type attempt struct {
	done bool // with box, acq and err as acquire returns them
	box  *Box
	acq  Lease
	err  error // without done: why acquire fails if it does not get better

	next <-chan struct{} // not nil: closed when the next attempt is worth it
}

func failed(err error) attempt { return attempt{done: true, err: err} }

// attempt looks in memory, on disk, and in memory again: nothing is locked while
// the disk is read.
func (m *Manager) attempt(ctx context.Context, f *search) attempt {
	if try, ok := m.attemptLiving(ctx, f); ok {
		return try
	}
	r, err := find(m.onDisk(f.key.owner, f.key.kind), f.key)
	switch {
	case err != nil:
		return failed(err)
	case r == nil:
	case r.Leased && !r.Own:
		return attempt{err: f.key.held(f.op)}
	case r.Leased:
		// By a call that is about to wake the box, or by a box of that id that ends
		// for good.
		if !m.endingForGood(r) {
			return attempt{}
		}
		r = nil
	case r.Saved.IsZero():
		if !m.recordLost(r) {
			return attempt{}
		}
		r = nil
	}
	if r == nil && f.make == nil {
		// It may have come up between the two looks.
		try, ok := m.attemptLiving(ctx, f)
		if !ok {
			try = attempt{done: true}
		}
		return try
	}
	var claim *snapshot.Lease
	if r != nil {
		if f.check != nil {
			if err := f.check(&Box{m: m, key: f.key, template: Template(r.Template), flavor: Flavor(r.Flavor)}); err != nil {
				return failed(err)
			}
		}
		if claim, err = m.claim(f.op, r); claim == nil {
			return attempt{done: err != nil, err: err}
		}
	}
	m.mu.Lock()
	try, ok := m.attemptLivingLocked(ctx, f)
	if !ok {
		try = m.resolveLocked(ctx, f, claim)
	}
	m.mu.Unlock()
	if claim != nil && try.acq.Woken == nil {
		m.releaseRecord(claim, true)
	}
	return try
}

func (m *Manager) attemptLiving(ctx context.Context, f *search) (try attempt, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.attemptLivingLocked(ctx, f)
}

// attemptLivingLocked looks for the box in memory; ok is false if it is not there.
func (m *Manager) attemptLivingLocked(ctx context.Context, f *search) (try attempt, ok bool) {
	if ctx.Err() != nil {
		return failed(cancelled(f.op, f.key, context.Cause(ctx))), true
	}
	if err := m.openLocked(f.op); err != nil {
		return failed(err), true
	}
	s, err := m.findLocked(f.op, f.key)
	if err != nil {
		return failed(err), true
	}
	if s != nil && m.expiredLocked(s) {
		m.expireLocked(s)
		s = nil
	}
	switch {
	case s == nil:
		if retiring := m.leavingLocked(f.key); retiring != nil {
			return attempt{next: retiring.freed}, true
		}
		return attempt{}, false
	case s.stopping > 0 && f.key.kind == KindContext:
		return failed(s.error(CodeBusy, f.op, fmt.Sprintf("Context %s is being stopped", s.key.id), "Create a new one.", nil)), true
	case f.check != nil:
		if err := f.check(s); err != nil {
			return failed(err), true
		}
	}
	return attempt{done: true, box: s, acq: Lease{pin: m.pinLocked(ctx, s)}}, true
}

// resolveLocked begins to wake the box of a claim, which it takes over if Lease.Woken
// says so, or without one to make a new box.
func (m *Manager) resolveLocked(ctx context.Context, f *search, claim *snapshot.Lease) attempt {
	var s *Box
	var acq Lease
	if claim != nil {
		s, acq.Woken = m.asWokenLocked(claim)
	} else {
		s = f.make()
		s.key = f.key
		s.chosen = f.key.kind == KindSession
		acq.Created = true
		acq.Lost = m.tombstones.get(f.key)
	}
	switch err := m.admitLocked(f.op, s); {
	case err == nil:
	case CodeOf(err) == CodeLimit && m.cfg().Evict && claim != nil:
		return attempt{err: err} // there may be room in a moment
	default:
		return failed(err)
	}
	acq.pin = m.pinLocked(ctx, s)
	return attempt{done: true, box: s, acq: acq}
}

// await waits for the start of a held box.
func (m *Manager) await(ctx context.Context, op string, s *Box, acq Lease) (*Box, Lease, error) {
	if err := s.awaitReady(ctx, acq.Woken != nil); err != nil {
		acq.Release()
		return nil, Lease{}, s.cancelled(op, err)
	}
	if s.startErr != nil {
		acq.Release()
		return nil, Lease{}, s.startErr
	}
	if acq.Woken != nil {
		acq.Woken.Rescued = s.Rescued()
	}
	return s, acq, nil
}

// awaitReady waits until the start of the box has ended, well or not. The error is
// the cause of ctx.
func (s *Box) awaitReady(ctx context.Context, woken bool) (err error) {
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
func (s *Box) matches(op string, template Template, flavor Flavor) error {
	what, has, want := "language", s.template.Language(), template.Language()
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
