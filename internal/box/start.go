package box

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// destroyTimeout bounds the waiting for an engine to free a guest; it takes
	// well under a second unless the host is in trouble.
	destroyTimeout = 30 * time.Second
	// exitWait is how long the engine has to say why a guest ended once its
	// link is lost. Reaping and reading the cgroup's counters takes milliseconds.
	exitWait = 2 * time.Second
)

// start brings the box up and tells those who wait. It runs in a goroutine of
// the Manager.
func (m *Manager) start(op string, s *Box, wait []*Box) {
	begun := time.Now()
	timeout := fmt.Errorf("timeout during creation: no answer within %s", span(m.cfg().StartTimeout))
	ctx, cancel := context.WithTimeoutCause(s.boot, m.cfg().StartTimeout, timeout)
	defer cancel()
	defer s.cancelBoot(nil)

	mach, source, err := m.bootWhenFree(ctx, s, wait)
	claim := s.origin.claim
	if err == nil && claim == nil {
		claim = m.record(s)
		if s.chosen && m.elsewhere(s.key) {
			err = errElsewhere
		}
	}
	m.mu.Lock()
	if err == nil && m.boxes[s.key] != s {
		err = errAbandoned
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		m.publishLocked(s, mach, source, claim)
		m.mu.Unlock()
		m.observe(s, EventStart, source, time.Since(begun), false)
		m.log.Info("box started", logkey.Guest, s.guestID, logkey.Kind, s.key.kind, logkey.Box, s.key.id,
			logkey.Template, s.template, logkey.Flavor, s.flavor, logkey.Source, source, logkey.Took, time.Since(begun).Round(time.Millisecond))
		return
	}
	tomb := s.tomb // before the error of the start is one
	s.startErr = m.startErrorLocked(op, s, err)
	if m.boxes[s.key] == s {
		delete(m.boxes, s.key)
	}
	m.leaving[s] = struct{}{}
	m.mu.Unlock()

	if tomb == nil && !errors.Is(err, errAbandoned) && !errors.Is(err, errClosed) && !errors.Is(err, errElsewhere) {
		m.observe(s, EventStart, source, time.Since(begun), true)
		m.log.Error("box did not start", logkey.Guest, s.guestID, logkey.Kind, s.key.kind, logkey.Box, s.key.id, logkey.Source, source, logkey.Error, err)
	}
	if mach != nil {
		m.discard(mach)
	}
	if claim != nil {
		// A box that was to be woken is still there for the next call.
		m.releaseRecord(claim, s.origin.claim != nil)
	}
	m.mu.Lock()
	delete(m.leaving, s)
	m.mu.Unlock()
	close(s.freed)
	close(s.ready)
}

// errElsewhere is the end of the start of a box whose id another server has given to
// a box at the same time. Each of the two records its box first and looks for the
// other's then, so that at most one of them goes on.
var errElsewhere = errors.New("another server has a box of that id")

// elsewhere reports whether another process has a box of that key in memory.
func (m *Manager) elsewhere(k key) bool {
	r, err := find(m.onDisk(k.owner, k.kind), k)
	return err == nil && r != nil && r.Leased && !r.Own
}

// bringUp makes the machine of a box when those in wait have gone. Few are made
// at once: more would only slow each other down.
func (m *Manager) bootWhenFree(ctx context.Context, s *Box, wait []*Box) (*machine.Machine, Source, error) {
	for _, o := range wait {
		select {
		case <-o.freed:
		case <-ctx.Done():
			return nil, "", context.Cause(ctx)
		}
	}
	m.starting.Add(1)
	defer m.starting.Add(-1)
	if err := m.starts.Acquire(ctx, 1); err != nil {
		return nil, "", context.Cause(ctx)
	}
	defer m.starts.Release(1)
	return m.make(ctx, s)
}

// publishLocked makes a box with its machine available. claim may be nil.
func (m *Manager) publishLocked(s *Box, mach *machine.Machine, source Source, claim *snapshot.Lease) {
	s.machine, s.guestID, s.source, s.claim, s.savedAt = mach, mach.ID, source, claim, m.now()
	if source == SourceWoken && !s.origin.stale {
		s.savedUse = s.use
	}
	m.started++
	m.tombstones.remove(s.key)
	m.wg.Go(func() { m.watchGuest(s) })
	m.wg.Go(func() { m.watchLink(s) })
	close(s.ready)
}

// startErrorLocked shapes the error of a start for its callers.
func (m *Manager) startErrorLocked(op string, s *Box, err error) error {
	switch {
	case s.tomb != nil && s.tomb.Reason != ReasonShutdown:
		return s.gone(op, s.tomb)
	case s.tomb != nil || errors.Is(err, errClosed):
		return &Error{Code: CodeNotReady, Op: op, Msg: "The server is not ready: it is shutting down"}
	case errors.Is(err, errAbandoned):
		return s.cancelled(op, err)
	case errors.Is(err, errElsewhere):
		return s.key.held(op)
	}
	hint := "Try again; if it happens again, the operator finds the reason in the server's log."
	switch {
	case errors.Is(err, engine.ErrExhausted):
		hint = "Insufficient resources available on the host: stop what is no longer needed, or use a smaller flavor."
	case errors.Is(err, engine.ErrUnavailable), errors.Is(err, engine.ErrUnsupported):
		hint = "The isolation cannot work on this host as it is; have the operator run the doctor command."
	}
	e := s.error(CodeStartFailed, op, fmt.Sprintf("Failed to create %s sandbox (%s)", s.template, s.flavor), hint, err)
	if we, ok := errors.AsType[*protocol.Error](err); ok {
		e.Err = errors.New(strings.TrimSpace(clip(we.Message, maxErrorText)))
		if we.Code == protocol.CodeNoLanguage {
			e.Code = CodeUnsupportedLanguage
		}
	}
	return e
}

// watchGuest ends the box when its guest has ended by itself.
func (m *Manager) watchGuest(s *Box) {
	ctx, cancel := context.WithCancel(m.base)
	defer cancel()
	stop := make(chan struct{})
	m.wg.Go(func() {
		select {
		case <-s.terminated:
		case <-stop:
		}
		cancel()
	})
	defer close(stop)
	exit, err := s.machine.Guest.Wait(ctx)
	if err != nil { // the box was ended from here
		return
	}
	reason, detail := ReasonCrashed, "its isolation ended"
	switch exit.Reason {
	case engine.ExitOOM:
		reason, detail = ReasonOOM, fmt.Sprintf("it used more than the %d MB of its flavor '%s'", s.flavor.Limits().MemoryMB, s.flavor)
	case engine.ExitExited:
		reason, detail = ReasonExited, fmt.Sprintf("its agent ended with code %d", exit.Code)
	case engine.ExitDestroyed:
		detail = "it was destroyed from outside"
	}
	if exit.Detail != "" {
		detail += " (" + strings.TrimSpace(clip(exit.Detail, 200)) + ")"
	}
	m.terminate(s, reason, detail)
}

// watchLink ends the box when its agent does not speak any more.
func (m *Manager) watchLink(s *Box) {
	select {
	case <-s.machine.Agent.Done():
	case <-s.terminated:
		return
	}
	t := time.NewTimer(exitWait)
	defer t.Stop()
	select {
	case <-s.terminated:
	case <-t.C:
		detail := "the link to its agent broke"
		if err := s.machine.Agent.Err(); err != nil {
			detail += " (" + strings.TrimSpace(clip(err.Error(), 200)) + ")"
		}
		m.terminate(s, ReasonCrashed, detail)
	}
}
