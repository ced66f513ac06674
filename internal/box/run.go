package box

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/cleantext"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/tracing"
)

// maxTraceback bounds the traceback in a result, in bytes. A deep recursion has
// thousands of frames, of which the first and the last say what happened.
const maxTraceback = 8 << 10

// Run runs code in the box's kernel of a language and returns when it has ended.
// One run at a time has the kernel; others wait in the order of their calls, but not for
// a run that is parked, which means that its code waits for a person (see Park): the error
// then has the reason ReasonParked. If ctx ends, the code
// is interrupted and the error is CodeCancelled.
//
// Errors: CodeInvalid, CodeUnsupportedLanguage, CodeBusy, CodeExecFailed,
// CodeGone, CodeNotReady, CodeCancelled, CodeInternal.
func (b *Box) Run(ctx context.Context, req RunRequest) (_ *RunResult, failed error) {
	const op = "run code"
	if req.ToolCalls != nil {
		defer req.ToolCalls.End()
	}
	lang, err := b.languageOf(op, req)
	if err != nil {
		return nil, err
	}
	timeout, err := b.timeout(op, req.Timeout)
	if err != nil {
		return nil, err
	}
	if len(req.Code) > protocol.MaxCode {
		return nil, b.invalid(op, "code", "Code too long: %d bytes, at most %d", len(req.Code), protocol.MaxCode)
	}
	end, err := b.begin(ctx, op)
	if err != nil {
		return nil, err
	}
	defer end()
	k := b.kernel(lang)
	if err := k.runs.Enter(ctx, b.aborted); err != nil {
		return nil, b.queueError(op, err)
	}
	defer k.runs.Leave()
	defer func() { b.keepUndelivered(ctx, req.ToolCalls, failed) }() // before the next run can end
	if err := b.callLock.Acquire(ctx, 1); err != nil {
		return nil, b.cancelled(op, context.Cause(ctx))
	}
	defer b.callLock.Release(1)

	endWork, err := b.resumeForCall(ctx, op)
	if err != nil {
		return nil, err
	}
	defer endWork()

	b.executed.Store(true)
	ctx, span := tracing.Start(ctx, "box run")
	span.Set("glovebox.language", lang)
	out := newCollector(b.env.cfg(), req.Progress)
	res, err := b.runInAgent(ctx, k, lang, req, timeout, out)
	span.End(err)
	if err != nil {
		return nil, out.attach(b.callError(ctx, op, err))
	}
	if res.Stopped == "cancelled" {
		return nil, out.attach(b.cancelled(op, context.Cause(ctx)))
	}
	if req.ToolCalls != nil {
		for _, d := range req.ToolCalls.Displays() {
			out.Display(d)
		}
	}
	out.keepTraceback(res.Error)
	out.fitOutput(res.Stdout)
	b.saveDisplays(ctx, out)
	return b.runResult(k, req.Code, &res, out, timeout), nil
}

// languageOf returns the language of a run: that of the request, or else of the box.
func (b *Box) languageOf(op string, req RunRequest) (lang string, err error) {
	lang = b.interpreter.Language()
	if req.Language != "" {
		t, err := ParseLanguage(req.Language)
		if err != nil {
			return "", err
		}
		lang = t.Language()
	}
	if have := b.interpreters(); have[lang] == "" {
		whose := "server"
		if b.template != "" {
			whose = "template"
		}
		return "", noInterpreter(op, lang, whose, have)
	}
	return lang, nil
}

// runInAgent has the agent run the code in a kernel that the caller has, and collects the output.
func (b *Box) runInAgent(ctx context.Context, k *kernel, lang string, req RunRequest, timeout time.Duration, out *collector) (res protocol.RunResult, err error) {
	x := protocol.Run{
		Kernel: lang, Language: lang,
		TimeoutMS: millis(timeout), GraceMS: millis(killGrace),
		Capture: protocol.Capture{Head: b.env.cfg().OutputHead, Tail: b.env.cfg().OutputTail},
	}
	if req.ToolCalls == nil {
		_, release := b.guard(ctx, timeout+b.env.kernelStart)
		defer release()
		return b.machine.Agent.Run(ctx, x, []byte(req.Code), out)
	}
	x.TimeoutMS = millis(timeout + maxParked)
	out.toolLanguage = lang
	took, err := b.parkable(ctx, k.runs, timeout, b.env.kernelStart, &res.Stopped, func(ctx context.Context) (err error) {
		res, err = b.machine.Agent.RunWithCalls(ctx, x, []byte(req.Code), out, req.ToolCalls)
		return err
	})
	res.Seconds = min(res.Seconds, took.Seconds())
	return res, err
}

// runResult converts the agent's result for the caller.
func (b *Box) runResult(k *kernel, code string, res *protocol.RunResult, out *collector, timeout time.Duration) *RunResult {
	r := &RunResult{
		Success:  res.OK && res.Error == nil && res.Stopped == "" && res.Lost == "",
		TimedOut: timedOut(res.Stopped),
		Fresh:    res.Fresh,
		Duration: seconds(res.Seconds),
	}
	r.Stdout, r.Notes = out.stdout.text(res.Stdout, r.Notes)
	r.Stderr, r.Notes = out.stderr.text(res.Stderr, r.Notes)
	r.Images = out.images
	if e := res.Error; e != nil {
		r.Error = &protocol.RunError{Name: clip(e.Name, 256), Value: headTail(cleantext.Clean(e.Value), 4<<10), Traceback: headTail(cleantext.Clean(e.Traceback), maxTraceback)}
		r.Stderr = joinLines(r.Stderr, r.Error.Traceback)
	}

	if res.Fresh && k.ran.Load() {
		r.Lost = "the interpreter had ended between the calls"
		r.Notes = append(r.Notes, "The interpreter had ended since the last call and was started anew: earlier variables were lost, files are kept.")
	}
	if res.Stopped != stoppedBeforeStart {
		k.ran.Store(true)
		if k == b.kernel(b.interpreter.Language()) {
			b.noteRan()
		}
	}
	if r.TimedOut {
		note := fmt.Sprintf("Code execution timed out after %s and was interrupted; variables are kept.", secs(timeout))
		switch {
		case res.Lost != "":
			note = fmt.Sprintf("Code execution timed out after %s.", secs(timeout))
		case res.Stopped == stoppedBeforeStart:
			note = fmt.Sprintf("Code execution timed out after %s, before the code began: the interpreter was starting. Run it again.", secs(timeout))
		}
		r.Notes = append(r.Notes, note)
	}
	if res.Lost != "" {
		k.ran.Store(false) // the next fresh kernel does not report it again
		r.Lost = lostText(res.Lost, b.flavor)
		if d := clip(res.LostDetail, 200); d != "" {
			r.Lost += " (" + strings.TrimSpace(d) + ")"
		}
		r.Notes = append(r.Notes, fmt.Sprintf("All variables were lost: %s. The next call starts a new interpreter; files are kept.", r.Lost))
	}
	if res.Lost == "oom" {
		r.Notes = append(r.Notes, b.flavor.more())
	} else if r.Error != nil && strings.HasSuffix(r.Error.Name, "MemoryError") {
		r.Notes = append(r.Notes, fmt.Sprintf("The box has %d MB of memory (flavor '%s'). %s", b.flavor.Limits().MemoryMB, b.flavor, b.flavor.more()))
	}
	network := b.network.take()
	how := hintInput{source: sourceOf(code), failed: !r.Success, stdout: r.Stdout, stderr: r.Stderr, toolLanguage: out.toolLanguage}
	r.Refused, r.RefusedMore = network.seen(how), network.more
	r.Notes = b.hints(r.Notes, how, network)
	if res.Ended > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("The code had filled the box with processes; the %d that it left running were ended.", res.Ended))
	}
	r.Notes = append(r.Notes, out.notes(res.Dropped)...)
	return r
}

// lostText explains the agent's reason code for the end of a kernel.
func lostText(lost string, f Flavor) string {
	switch lost {
	case "killed":
		return "the interpreter did not yield to the interrupt and was killed"
	case "oom":
		return fmt.Sprintf("the interpreter used more memory than the %d MB of flavor '%s'", f.Limits().MemoryMB, f)
	case "exited":
		return "the code ended the interpreter"
	}
	return "the interpreter crashed"
}

// seconds converts a number from a guest, which may be any float.
func seconds(f float64) time.Duration {
	if !(f > 0) {
		return 0
	}
	return time.Duration(min(f, 1e6) * float64(time.Second))
}
