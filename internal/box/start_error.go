package box

import (
	"errors"
	"fmt"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// startErrorLocked returns the error of a start for its callers.
func (l *lifecycle) startErrorLocked(op string, b *Box, err error) error {
	switch {
	case b.tomb != nil && b.tomb.Reason != ReasonShutdown:
		return b.goneLocked(op)
	case b.tomb != nil || errors.Is(err, errClosed):
		return &Error{Code: CodeNotReady, Op: op, Msg: "The server is not ready: it is shutting down"}
	case errors.Is(err, errAbandoned):
		return b.cancelled(op, err)
	case errors.Is(err, errIDTaken) && l.parts.Fleet != nil:
		return b.key.heldElsewhere(op)
	case errors.Is(err, errIDTaken):
		return b.key.held(op)
	case CodeOf(err) == CodeNotReady, CodeOf(err) == CodeLimit, CodeOf(err) == CodeBusy, CodeOf(err) == CodeGone: // busy or gone: the box to fork
		return err
	case errors.Is(err, hostdisk.ErrFull):
		return &Error{
			Code: CodeLimit, Op: op, Context: map[string]string{"limit": "disk"}, Err: err,
			Msg:  fmt.Sprintf("Disk limit exceeded: the server's disk has no room for another box of flavor '%s'", b.flavor),
			Hint: "Stop what is no longer needed or try again later; the operator can free disk space, or lower --disk-reserve-mb or --disk-guarantee.",
		}
	}
	if missing, ok := errors.AsType[*MissingImageError](err); ok {
		return b.missingImage(op, missing)
	}
	if unusable, ok := errors.AsType[*VolumeError](err); ok {
		return b.withoutVolume(op, unusable)
	}
	if lost, ok := errors.AsType[*unrestorableError](err); ok {
		return b.error(CodeStartFailed, op, b.startFailed()+": "+lost.Error(), lost.hint, nil)
	}
	hint := "Try again; if it happens again, the operator finds the reason in the server's log."
	unfit, isUnfit := errors.AsType[*unfitError](err)
	switch {
	case isUnfit:
		hint = unfit.hint()
	case errors.Is(err, engine.ErrExhausted):
		hint = "Insufficient resources available on the host: stop what is no longer needed, or use a smaller flavor."
	case errors.Is(err, engine.ErrUnavailable), errors.Is(err, engine.ErrUnsupported):
		hint = "The isolation cannot work on this host as it is; have the operator run the doctor command."
	}
	e := b.error(CodeStartFailed, op, b.startFailed(), hint, err)
	if remote, ok := errors.AsType[*protocol.Error](err); ok {
		e.Err = errors.New(strings.TrimSpace(clip(remote.Message, maxErrorText)))
		if remote.Code == protocol.CodeNoLanguage {
			e.Code = CodeUnsupportedLanguage
		}
	}
	return e
}

// unrestorableError is the error of a saved snapshot whose memory cannot be restored.
type unrestorableError struct {
	why, hint string // for clients
	cause     error
}

func (e *unrestorableError) Error() string {
	return "the memory of the snapshot cannot be restored: " + e.why
}
func (e *unrestorableError) Unwrap() error { return e.cause }

// startFailed is the message of a start that failed.
func (s *spec) startFailed() string {
	verb := "create"
	if s.origin.record != nil {
		verb = "wake"
	}
	return fmt.Sprintf("Failed to %s %s sandbox (%s)", verb, s.interpreter, s.flavor)
}
