package box

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/callqueue"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// Code says what kind of failure an Error is. It is a closed set: a metric
// label, and what callers switch on.
type Code string

// The closed set of codes.
const (
	CodeInvalid             Code = "invalid"              // the arguments make no sense; the same call never works
	CodeNotFound            Code = "not_found"            // no such context or process, or not the caller's
	CodeGone                Code = "gone"                 // the box ended before or during the call; Context["reason"] says why
	CodeLimit               Code = "limit"                // a limit of number or memory, and nothing may be evicted
	CodeBusy                Code = "busy"                 // too many calls wait for this box, or it is being stopped
	CodeHeld                Code = "held"                 // another server process on the same state directory has the box in memory
	CodeNotReady            Code = "not_ready"            // the manager has not started or is closing
	CodeStartFailed         Code = "start_failed"         // the box did not start
	CodeExecFailed          Code = "exec_failed"          // the code or command could not be run at all
	CodeStopFailed          Code = "stop_failed"          // code still runs after the wait
	CodeUnsupportedLanguage Code = "unsupported_language" // unknown, or the image has no interpreter for it
	CodeUnsupported         Code = "unsupported"          // this server's engine or configuration cannot do it
	CodeFileNotFound        Code = "file_not_found"
	CodeFileExists          Code = "file_exists"
	CodeFileTooLarge        Code = "file_too_large"
	CodePathNotAllowed      Code = "path_not_allowed" // outside the writable directories, or permissions forbid it
	CodeNoSpace             Code = "no_space"         // the box's disk is full
	CodeCancelled           Code = "cancelled"        // the caller's context ended
	CodeInternal            Code = "internal"         // our own fault
)

// Error is every failure of this package. A failing program or command in a box
// is not an Error but a result.
type Error struct {
	Code Code
	// Op is what was tried: "create session", "run code", "read file".
	Op string
	// Msg is for people and models: what was tried, with which value, why not.
	Msg string
	// Hint is one sentence on what to do next; may be empty.
	Hint string
	// Context has details for programs: "session_id", "context_id", "reason",
	// "path", "limit"; may be nil.
	Context map[string]string
	// Partial is the output of a program until its box was gone; may be nil.
	Partial *Partial
	// Err is the cause; may be nil.
	Err error
}

// Partial is the output of a call that was cut off, bounded as that of a result.
type Partial struct {
	Stdout, Stderr string
	Duration       time.Duration // since the call got its turn in the box
}

// Error returns Msg and the cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Msg
	}
	return e.Msg + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the code of err: "" for nil, that of the *Error in it,
// CodeCancelled for a context's error, else CodeInternal.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return CodeCancelled
	}
	return CodeInternal
}

// maxErrorText bounds what a guest can put into an error, in bytes.
const maxErrorText = 1024

// details returns the Context of an error about a box.
func (k key) details() map[string]string {
	return map[string]string{string(k.kind) + "_id": k.id}
}

func (k key) error(code Code, op, why, hint string) *Error {
	return &Error{
		Code: code, Op: op, Msg: fmt.Sprintf("The %s %s is not available: %s", k.kind, clip(k.id, maxID), why),
		Hint: hint, Context: k.details(),
	}
}

// held returns the error of a box that another server process has in memory.
func (k key) held(op string) *Error {
	return k.error(CodeHeld, op, "another Glovebox server process on the same state directory has it in memory, for another client",
		fmt.Sprintf("Use another %s id, or leave it out for a new %s; or ask the user to end the other client, and call again: then it continues here with its variables and files.", k.kind, k.kind))
}

// heldByStoppingServer returns the error of a box that another server process, which is stopping, still has in
// memory.
func (k key) heldByStoppingServer(op string) *Error {
	return k.error(CodeHeld, op, "another Glovebox server process on the same state directory is stopping: it still ends a call, or writes it to disk",
		"Call again later. Its variables and files are kept; an unfinished call of the client that has left may still change them.")
}

func (s *spec) error(code Code, op, msg, hint string, err error) *Error {
	return &Error{Code: code, Op: op, Msg: msg, Hint: hint, Err: err, Context: s.key.details()}
}

func (s *spec) invalid(op, field, format string, args ...any) *Error {
	e := s.error(CodeInvalid, op, fmt.Sprintf(format, args...), "", nil)
	e.Context["field"] = field
	return e
}

func (s *spec) cancelled(op string, cause error) *Error { return cancelled(op, s.key, cause) }

func cancelled(op string, k key, cause error) *Error {
	return &Error{Code: CodeCancelled, Op: op, Msg: "Cancelled: " + op, Err: cause, Context: k.details()}
}

// goneLocked says that the box has ended, and how.
func (b *Box) goneLocked(op string) *Error {
	t := b.tomb
	kind := "Session"
	if b.key.kind == KindContext {
		kind = "Context"
	}
	how := t.Explain(b.env.now())
	msg := fmt.Sprintf("%s %s has ended: %s", kind, b.key.id, how)
	if t.Reason == ReasonHibernated || t.Reason == ReasonRolledBack { // it goes on
		msg = fmt.Sprintf("The call was interrupted: %s %s %s", b.key.kind, b.key.id, strings.TrimPrefix(how, "it "))
	}
	e := b.error(CodeGone, op, msg,
		"Its variables and files are gone. Create a new one, or call again with the same session_id.", nil)
	if b.key.kind == KindContext {
		e.Hint = "Its variables and files are gone. Create a new context."
	}
	switch {
	case t.Reason == ReasonHibernated && b.endedForQuota(t): // its memory may be lost, see explainFrozen
		e.Hint = "Call again: it wakes with its variables and files or, if a program had a file of the volume open, with the files that the disk had room to store."
	case t.Reason == ReasonHibernated:
		e.Hint = "Call again: it wakes with its variables and files."
	case t.Reason == ReasonRolledBack:
		e.Hint = "Call again: it continues from the snapshot."
	case b.recordStays && b.hasData:
		saved := b.written.UTC().Format(time.RFC3339)
		e.Hint = "Call again: it wakes as it was written to disk at " + saved + "."
		e.Context["saved"] = saved
	}
	e.Context["reason"] = string(t.Reason)
	if b.endedForQuota(t) {
		e.Context["limit"] = "volume_quota"
		e.Hint += quotaHint
	}
	return e
}

// ReasonParked is the reason in the context of an error with CodeBusy for a call that would wait
// for a parked one.
const ReasonParked = "parked"

// queueError shapes what callqueue.Queue.Enter returned.
func (b *Box) queueError(op string, err error) error {
	switch {
	case errors.Is(err, callqueue.ErrFull):
		return b.error(CodeBusy, op,
			fmt.Sprintf("The %s %s is busy: %d calls wait already", b.key.kind, b.key.id, b.env.cfg().QueueLen),
			"Try again when running calls have ended, or use another one.", nil)
	case errors.Is(err, callqueue.ErrParked):
		e := b.error(CodeBusy, op,
			fmt.Sprintf("The %s %s is busy: a program in it waits for its user's approval of a tool call", b.key.kind, b.key.id),
			"Call again when it has ended, or use another one.", nil)
		e.Context["reason"] = ReasonParked
		return e
	case errors.Is(err, callqueue.ErrEnded):
		return b.goneNow(op, err)
	}
	return b.cancelled(op, err)
}

// goneNow is goneLocked for a box whose end may only be about to be known.
func (b *Box) goneNow(op string, err error) error {
	t := time.NewTimer(exitWait + time.Second)
	defer t.Stop()
	select {
	case <-b.aborted:
		b.reg.mu.Lock()
		defer b.reg.mu.Unlock()
		return b.goneLocked(op)
	case <-t.C:
		return b.error(CodeInternal, op, "The connection to the box broke", "Try again.", err)
	}
}

// callError converts the error of a call to the agent.
func (b *Box) callError(ctx context.Context, op string, err error) error {
	remote, fromAgent := errors.AsType[*protocol.Error](err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, client.ErrLost):
		return b.goneNow(op, err)
	case ctx.Err() != nil:
		return b.cancelled(op, context.Cause(ctx))
	case !fromAgent:
		select {
		case <-b.aborted:
			return b.goneNow(op, err)
		default:
			return b.error(CodeInternal, op, "Failed: "+op, "", err)
		}
	}
	e := b.error(CodeInternal, op, strings.TrimSpace(clip(remote.Message, maxErrorText)), "", nil)
	switch remote.Code {
	case protocol.CodeInvalid:
		e.Code = CodeInvalid
	case protocol.CodeNotFound:
		e.Code = CodeNotFound
	case protocol.CodeExists:
		e.Code = CodeFileExists
	case protocol.CodeNotAllowed:
		e.Code = CodePathNotAllowed
	case protocol.CodeTooLarge:
		e.Code = CodeFileTooLarge
	case protocol.CodeNoSpace:
		e.Code = CodeNoSpace
		e.Hint = fmt.Sprintf("The disk of flavor '%s' has %d MB; remove files or use a larger flavor.", b.flavor, b.flavor.Limits().DiskMB)
	case protocol.CodeBusy:
		e.Code = CodeBusy
	case protocol.CodeNoLanguage:
		e.Code = CodeUnsupportedLanguage
	case protocol.CodeStart:
		e.Code = CodeExecFailed
	case protocol.CodeCancelled:
		e.Code = CodeCancelled
	}
	return e
}
