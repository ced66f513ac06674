package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/tracing"
)

// Exec runs a command beside the kernel. A non-zero exit is an answer.
// Background processes do not keep the box from expiring or being evicted.
//
// Errors: as Run.
func (b *Box) Exec(ctx context.Context, req ExecRequest) (_ *ExecResult, failed error) {
	const op = "run command"
	if req.ToolCalls != nil {
		defer req.ToolCalls.End()
	}
	if (len(req.Argv) == 0) == (req.Shell == "") {
		return nil, b.invalid(op, "command", "Missing command: give a program with arguments or a shell line, and not both")
	}
	timeout, err := b.timeout(op, req.Timeout)
	if err != nil {
		return nil, err
	}
	end, err := b.slot(ctx, op)
	if err != nil {
		return nil, err
	}
	defer end()
	defer func() { b.keepUndelivered(ctx, req.ToolCalls, failed) }()
	x := protocol.Exec{
		Argv: req.Argv, Shell: req.Shell, Env: req.Env, Dir: req.Dir,
		TimeoutMS: millis(timeout), GraceMS: millis(killGrace),
		Stdin: req.Stdin != nil, Background: req.Background,
		Capture: protocol.Capture{Head: b.env.cfg().OutputHead, Tail: b.env.cfg().OutputTail},
	}
	if req.Background {
		x.TimeoutMS = 0
	}
	b.executed.Store(true)
	ctx, span := tracing.Start(ctx, "box exec")
	out := newCollector(b.env.cfg(), req.Progress)
	var res protocol.ExecResult
	if req.ToolCalls != nil {
		out.toolLanguage = "shell"
	}
	if req.ToolCalls == nil || req.Background {
		_, release := b.guard(ctx, timeout)
		res, err = b.machine.Agent.Exec(ctx, x, req.Stdin, out)
		release()
	} else {
		x.TimeoutMS = millis(timeout + maxParked)
		var took time.Duration
		took, err = b.parkable(ctx, nil, timeout, 0, &res.Stopped, func(ctx context.Context) (err error) {
			res, err = b.machine.Agent.ExecWithCalls(ctx, x, req.Stdin, out, req.ToolCalls)
			return err
		})
		res.Seconds = min(res.Seconds, took.Seconds())
	}
	span.End(err)
	if err != nil {
		err = out.attach(b.callError(ctx, op, err))
		if e, ok := errors.AsType[*Error](err); ok && e.Code == CodeFileTooLarge {
			e.Code = CodeInvalid // the command is, and no file
		}
		return nil, err
	}
	if res.Stopped == "cancelled" {
		return nil, out.attach(b.cancelled(op, context.Cause(ctx)))
	}
	if req.ToolCalls != nil {
		for _, d := range req.ToolCalls.Displays() {
			out.Display(d)
		}
		out.fitOutput(res.Stdout)
		b.saveDisplays(ctx, out)
	}
	return b.execResult(cmp.Or(req.Shell, strings.Join(req.Argv, " ")), &res, out, timeout), nil
}

// execResult converts the agent's result for the caller.
func (b *Box) execResult(command string, res *protocol.ExecResult, out *collector, timeout time.Duration) *ExecResult {
	r := &ExecResult{
		ID: clip(res.ID, 64), PID: res.PID, Running: res.Running, ExitCode: res.Code, Signal: clip(res.Signal, 64),
		Duration: seconds(res.Seconds), TimedOut: timedOut(res.Stopped),
		StdoutBytes: res.Stdout.Bytes, StderrBytes: res.Stderr.Bytes,
	}
	r.Stdout, r.Notes = out.stdout.text(res.Stdout, r.Notes)
	r.Stderr, r.Notes = out.stderr.text(res.Stderr, r.Notes)
	r.Images = out.images
	switch {
	case res.Stopped == stoppedBeforeStart:
		r.Notes = append(r.Notes, fmt.Sprintf("Command execution timed out after %s, before the command began. Run it again.", secs(timeout)))
	case r.TimedOut:
		r.Notes = append(r.Notes, fmt.Sprintf("Command execution timed out after %s and was ended.", secs(timeout)))
	case res.Stopped == "oom":
		r.Notes = append(r.Notes, fmt.Sprintf("The command was killed: it used more memory than the %d MB of flavor '%s'. %s", b.flavor.Limits().MemoryMB, b.flavor, b.flavor.more()))
	case r.ExitCode == 134 && strings.Contains(r.Stderr, heapExhausted):
		r.Notes = append(r.Notes, fmt.Sprintf("Node.js ended because its heap, which takes most of the memory of the box (%d MB, flavor '%s'), was full. %s", b.flavor.Limits().MemoryMB, b.flavor, b.flavor.more()))
	case r.Running:
	case r.ExitCode == 127:
		r.Notes = append(r.Notes, "Exit code 127: the command was not found.")
	case r.ExitCode == 126:
		r.Notes = append(r.Notes, "Exit code 126: the command is not executable.")
	}
	network := b.network.take()
	how := hintInput{source: sourceOf(command), failed: r.ExitCode != 0, exitCode: r.ExitCode, stdout: r.Stdout, stderr: r.Stderr, toolLanguage: out.toolLanguage}
	r.Refused, r.RefusedMore = network.seen(how), network.more
	r.Notes = b.hints(r.Notes, how, network)
	r.Notes = append(r.Notes, out.notes(0)...)
	return r
}

// Processes lists the background processes, the newest first.
func (b *Box) Processes(ctx context.Context) ([]Process, error) {
	var res protocol.PSResult
	err := b.call(ctx, "list processes", func(ctx context.Context) (err error) {
		res, err = b.machine.Agent.PS(ctx)
		return err
	})
	return res.Processes, err
}

// errAttachLimit ends an Attach whose time is over.
var errAttachLimit = errors.New("attach limit reached")

// Attach returns output of a background process. With Follow it waits for the
// end of the process, at most req.Timeout; the result then has Running.
//
// Errors: CodeNotFound, else as Run.
func (b *Box) Attach(ctx context.Context, req AttachRequest) (*ExecResult, error) {
	const op = "attach to process"
	timeout, err := b.timeout(op, req.Timeout)
	if err != nil {
		return nil, err
	}
	if req.Stdout < 0 || req.Stderr < 0 {
		return nil, b.invalid(op, "offset", "Invalid offset: it must not be negative")
	}
	end, err := b.slot(ctx, op)
	if err != nil {
		return nil, err
	}
	defer end()
	out := newCollector(b.env.cfg(), req.Progress)
	follow, cancel := context.WithTimeoutCause(ctx, timeout, errAttachLimit)
	defer cancel()
	res, err := b.machine.Agent.Attach(follow, protocol.Attach{ID: req.ID, Stdout: req.Stdout, Stderr: req.Stderr, Follow: req.Follow}, out)
	if err != nil {
		return nil, b.callError(ctx, op, err)
	}
	if ctx.Err() != nil {
		return nil, b.cancelled(op, context.Cause(ctx))
	}
	return b.execResult("", &res, out, timeout), nil
}

// Signal sends a signal ("INT", "TERM", "KILL", …) to a background process and
// its group.
//
// Errors: CodeNotFound, CodeInvalid, else as Run.
func (b *Box) Signal(ctx context.Context, id, signal string) error {
	return b.call(ctx, "signal process", func(ctx context.Context) error {
		return b.machine.Agent.Signal(ctx, protocol.Signal{ID: id, Signal: signal})
	})
}
