package link

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/glovebox-dev/glovebox/internal/wire"
)

// Sink takes the output of a run or command: in order, never concurrently, in
// the goroutine of the caller. It must not keep p. While it does not return the
// guest is held up, other operations are not. A nil Sink drops everything.
type Sink interface {
	Output(ch wire.Channel, p []byte)
	Display(d wire.Display)
}

// Ping asks the agent for a sign of life and says how long it took.
func (l *Link) Ping(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	err := l.do(ctx, wire.OpPing, nil, nil, nil, 0, nil)
	return time.Since(start), err
}

// Run runs code in a kernel. A run that fails, is stopped or loses its kernel
// is a result, not an error. When ctx ends the run is ended, too, and its result
// says Stopped "cancelled"; only if the agent does not answer within the grace
// and five seconds is the cause of ctx the error.
func (l *Link) Run(ctx context.Context, x wire.Run, code []byte, s Sink) (wire.RunResult, error) {
	var res wire.RunResult
	if len(code) > wire.MaxCode {
		return res, &wire.Error{Code: wire.CodeTooLarge, Message: fmt.Sprintf("code of %d bytes is longer than %d; write it to a file", len(code), wire.MaxCode)}
	}
	if code == nil {
		code = []byte{}
	}
	err := l.doBytes(ctx, wire.OpRun, x, code, nil, outputTo(s), grace(x.GraceMS), &res)
	return res, err
}

// Kernel starts, stops or restarts a kernel.
func (l *Link) Kernel(ctx context.Context, x wire.Kernel) (wire.KernelResult, error) {
	var res wire.KernelResult
	err := l.do(ctx, wire.OpKernel, x, nil, nil, defaultGrace, &res)
	return res, err
}

// Exec runs a command. stdin, if not nil, is read until its end or the
// command's, in a goroutine of its own, which ends when the Read under way then
// returns. When ctx ends the command is ended, as with Run. A Background
// command goes on when Exec has returned.
func (l *Link) Exec(ctx context.Context, x wire.Exec, stdin io.Reader, s Sink) (wire.ExecResult, error) {
	var res wire.ExecResult
	x.Stdin = stdin != nil
	o, err := l.start(ctx, wire.OpExec, x)
	if err != nil {
		return res, err
	}
	defer close(o.quit)
	stop := context.AfterFunc(ctx, o.sendCancel)
	defer stop()
	l.out.Kick()
	if stdin != nil {
		go func() {
			if o.sendBody(ctx, wire.Stdin, nil, stdin) != nil {
				// A reader that fails is one that ends: the command decides.
				o.put(wire.Header{Type: wire.EOF, Channel: wire.Stdin, Op: o.id}, nil)
				l.out.Kick()
			}
		}()
	}
	err = o.finish(ctx, outputTo(s), grace(x.GraceMS), &res)
	return res, err
}

// Attach replays what is kept of a background process's output and, with
// Follow, goes on until the process or ctx ends; that ctx ends is no error. In
// the result Bytes of each stream is the offset to go on from, Omitted what was
// asked for and is no longer kept.
func (l *Link) Attach(ctx context.Context, x wire.Attach, s Sink) (wire.ExecResult, error) {
	var res wire.ExecResult
	err := l.do(ctx, wire.OpAttach, x, nil, outputTo(s), 0, &res)
	return res, err
}

// Signal sends a signal to a background process and its group.
func (l *Link) Signal(ctx context.Context, x wire.Signal) error {
	return l.do(ctx, wire.OpSignal, x, nil, nil, 0, nil)
}

// PS lists the background processes, the newest first.
func (l *Link) PS(ctx context.Context) (wire.PSResult, error) {
	var res wire.PSResult
	err := l.do(ctx, wire.OpPS, nil, nil, nil, 0, &res)
	return res, err
}

// Read writes the content of a regular file to w. It returns w's error if that
// fails.
func (l *Link) Read(ctx context.Context, x wire.Read, w io.Writer) (wire.FileInfo, error) {
	var res wire.FileInfo
	err := l.do(ctx, wire.OpRead, x, nil, bodyTo(w), 0, &res)
	return res, err
}

// Write writes a file from r, whole or not at all. It returns r's error if that
// fails.
func (l *Link) Write(ctx context.Context, x wire.Write, r io.Reader) (wire.FileInfo, error) {
	var res wire.FileInfo
	err := l.do(ctx, wire.OpWrite, x, r, nil, 0, &res)
	return res, err
}

// Stat describes a file.
func (l *Link) Stat(ctx context.Context, path string) (wire.FileInfo, error) {
	var res wire.FileInfo
	err := l.do(ctx, wire.OpStat, wire.Path{Path: path}, nil, nil, 0, &res)
	return res, err
}

// List lists a directory.
func (l *Link) List(ctx context.Context, x wire.List) (wire.ListResult, error) {
	var res wire.ListResult
	err := l.do(ctx, wire.OpList, x, nil, nil, 0, &res)
	return res, err
}

// Mkdir makes a directory.
func (l *Link) Mkdir(ctx context.Context, x wire.Mkdir) (wire.FileInfo, error) {
	var res wire.FileInfo
	err := l.do(ctx, wire.OpMkdir, x, nil, nil, 0, &res)
	return res, err
}

// Remove removes a file or directory.
func (l *Link) Remove(ctx context.Context, x wire.Remove) error {
	return l.do(ctx, wire.OpRemove, x, nil, nil, 0, nil)
}

// Archive writes a tar archive of a file or directory to w.
func (l *Link) Archive(ctx context.Context, path string, w io.Writer) error {
	return l.do(ctx, wire.OpArchive, wire.Path{Path: path}, nil, bodyTo(w), 0, nil)
}

// Extract unpacks a tar archive into a directory.
func (l *Link) Extract(ctx context.Context, path string, r io.Reader) error {
	return l.do(ctx, wire.OpExtract, wire.Extract{Path: path}, r, nil, 0, nil)
}

// Backup writes a tar archive of the home directory to w.
func (l *Link) Backup(ctx context.Context, x wire.Backup, w io.Writer) (wire.BackupResult, error) {
	var res wire.BackupResult
	err := l.do(ctx, wire.OpBackup, x, nil, bodyTo(w), 0, &res)
	return res, err
}

// Unpack unpacks an archive that Backup wrote into the home directory.
func (l *Link) Unpack(ctx context.Context, r io.Reader) error {
	return l.do(ctx, wire.OpExtract, wire.Extract{Path: ".", Backup: true}, r, nil, 0, nil)
}

func grace(ms int64) time.Duration {
	const most = time.Hour
	if ms <= 0 {
		return defaultGrace
	}
	return min(time.Duration(min(ms, most.Milliseconds()))*time.Millisecond, most)
}

// bodyTo hands the body to w.
func bodyTo(w io.Writer) output {
	return func(ch wire.Channel, _ bool, p []byte) error {
		if ch != wire.Body || len(p) == 0 {
			return nil
		}
		_, err := w.Write(p)
		return err
	}
}

// outputTo hands output and displays to s.
func outputTo(s Sink) output {
	if s == nil {
		return nil
	}
	var display []byte
	return func(ch wire.Channel, more bool, p []byte) error {
		switch ch {
		case wire.Stdout, wire.Stderr:
			if len(p) > 0 {
				s.Output(ch, p)
			}
		case wire.Displays:
			if len(display)+len(p) > wire.MaxDisplay {
				return fmt.Errorf("%w: a display of more than %d bytes", wire.ErrFrame, wire.MaxDisplay)
			}
			if more {
				display = append(display, p...)
				return nil
			}
			if len(display) > 0 {
				p = append(display, p...)
				display = nil
			}
			var d wire.Display
			if err := json.Unmarshal(p, &d); err != nil {
				return fmt.Errorf("%w: display: %w", wire.ErrFrame, err)
			}
			s.Display(d)
		}
		return nil
	}
}
