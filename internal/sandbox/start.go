package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/link"
	"github.com/glovebox-dev/glovebox/internal/wire"
)

const (
	// overheadMB and overheadPIDs are what the agent and the isolation need
	// inside a guest, beyond what is promised to the user's code: measured about
	// 20 MB and 15 threads, with room for growth.
	overheadMB   = 64
	overheadPIDs = 64
	// destroyTimeout bounds the waiting for an engine to free a guest; it takes
	// well under a second unless the host is in trouble.
	destroyTimeout = 30 * time.Second
	// verdictWait is how long the engine has to say why a guest ended once its
	// link is lost. Reaping and reading the cgroup's counters takes milliseconds.
	verdictWait = 2 * time.Second
)

// start boots the box and tells those who wait. It runs in a goroutine of the
// Manager.
func (m *Manager) start(op string, s *Sandbox, wait []*Sandbox) {
	begun := time.Now()
	timeout := fmt.Errorf("timeout during creation: no answer within %s", span(m.cfg.StartTimeout))
	ctx, cancel := context.WithTimeoutCause(s.boot, m.cfg.StartTimeout, timeout)
	defer cancel()
	defer s.abandon(nil)

	guest, lnk, err := m.bootGuest(ctx, s, wait)
	m.mu.Lock()
	if err == nil && m.boxes[s.key] != s {
		err = errAbandoned
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		s.guest, s.link = guest, lnk
		m.started++
		m.graves.remove(s.key)
		m.wg.Go(func() { m.watchGuest(s) })
		m.wg.Go(func() { m.watchLink(s) })
		close(s.ready)
		m.mu.Unlock()
		m.log.Info("box started", "sandbox", s.guestID, "kind", s.key.kind, "id", s.key.id,
			"template", s.template, "flavor", s.flavor, "took", time.Since(begun).Round(time.Millisecond))
		return
	}
	s.startErr = m.startErrorLocked(op, s, err)
	if m.boxes[s.key] == s {
		delete(m.boxes, s.key)
	}
	m.dying[s] = struct{}{}
	tomb := s.tomb
	m.mu.Unlock()

	if tomb == nil && !errors.Is(err, errAbandoned) && !errors.Is(err, errClosed) {
		m.log.Error("box did not start", "sandbox", s.guestID, "kind", s.key.kind, "id", s.key.id, "err", err)
	}
	m.free(s, guest, lnk)
	close(s.ready)
}

// bootGuest creates the guest, links to its agent and, for a context, starts
// its kernel. What it returns is to be freed by the caller even with an error.
func (m *Manager) bootGuest(ctx context.Context, s *Sandbox, wait []*Sandbox) (engine.Guest, *link.Link, error) {
	for _, o := range wait {
		select {
		case <-o.freed:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
	limits := s.flavor.Limits()
	spec := engine.Spec{Root: m.parts.Root, Agent: m.parts.Agent, Limits: limits, Mounts: m.cfg.Volumes}
	spec.Limits.MemoryMB += overheadMB
	spec.Limits.PIDs += overheadPIDs
	guest, err := m.parts.Engine.Create(ctx, s.guestID, &spec)
	if err != nil {
		return nil, nil, err
	}
	hello := wire.Hello{
		Home: m.cfg.Home, Scratch: []string{"/tmp"}, UID: m.cfg.UID, GID: m.cfg.GID, Env: m.cfg.Env,
		Interpreters: m.parts.Interpreters, PIDs: limits.PIDs, MemoryMB: limits.MemoryMB,
		Entropy: make([]byte, 32), Now: time.Now().UnixNano(),
	}
	rand.Read(hello.Entropy) // never fails
	for _, v := range m.cfg.Volumes {
		if !v.ReadOnly {
			hello.Scratch = append(hello.Scratch, v.Guest)
		}
	}
	lnk, err := link.Open(ctx, guest, link.Options{Hello: hello, Log: m.log.With("sandbox", s.guestID)})
	if err != nil {
		return guest, nil, fmt.Errorf("link to the agent: %w", err)
	}
	if s.key.kind == KindContext {
		lang := s.template.Language()
		if _, err := lnk.Kernel(ctx, wire.Kernel{Kernel: lang, Language: lang, Action: "start"}); err != nil {
			return guest, lnk, fmt.Errorf("start the %s interpreter: %w", lang, err)
		}
	}
	return guest, lnk, nil
}

// startErrorLocked shapes the error of a start for its callers.
func (m *Manager) startErrorLocked(op string, s *Sandbox, err error) error {
	switch {
	case s.tomb != nil && s.tomb.Reason != ReasonShutdown:
		return s.gone(op, s.tomb)
	case s.tomb != nil || errors.Is(err, errClosed):
		return &Error{Code: CodeNotReady, Op: op, Msg: "The server is not ready: it is shutting down"}
	case errors.Is(err, errAbandoned):
		return s.cancelled(op, err)
	}
	hint := "Try again; if it happens again, the operator finds the reason in the server's log."
	switch {
	case errors.Is(err, engine.ErrExhausted):
		hint = "Insufficient resources available on the host: stop what is no longer needed, or use a smaller flavor."
	case errors.Is(err, engine.ErrUnavailable), errors.Is(err, engine.ErrUnsupported):
		hint = "The isolation cannot work on this host as it is; have the operator run the doctor command."
	}
	e := s.error(CodeStartFailed, op, fmt.Sprintf("Failed to create %s sandbox (%s)", s.template, s.flavor), hint, err)
	if we, ok := errors.AsType[*wire.Error](err); ok {
		e.Err = errors.New(strings.TrimSpace(clip(we.Message, maxErrorText)))
		if we.Code == wire.CodeNoLanguage {
			e.Code = CodeUnsupportedLanguage
		}
	}
	return e
}

// watchGuest ends the box when its guest has ended by itself.
func (m *Manager) watchGuest(s *Sandbox) {
	ctx, cancel := context.WithCancel(m.base)
	defer cancel()
	stop := make(chan struct{})
	m.wg.Go(func() {
		select {
		case <-s.condemned:
		case <-stop:
		}
		cancel()
	})
	defer close(stop)
	exit, err := s.guest.Wait(ctx)
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
	m.condemn(s, reason, detail)
}

// watchLink ends the box when its agent does not speak any more.
func (m *Manager) watchLink(s *Sandbox) {
	select {
	case <-s.link.Done():
	case <-s.condemned:
		return
	}
	t := time.NewTimer(verdictWait)
	defer t.Stop()
	select {
	case <-s.condemned:
	case <-t.C:
		detail := "the link to its agent broke"
		if err := s.link.Err(); err != nil {
			detail += " (" + strings.TrimSpace(clip(err.Error(), 200)) + ")"
		}
		m.condemn(s, ReasonCrashed, detail)
	}
}
