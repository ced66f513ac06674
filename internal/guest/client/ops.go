package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// Sink takes the output of a run or command: in order, never concurrently, in
// the goroutine of the caller. It must not keep p. While it does not return the
// guest is held up, other operations are not. A nil Sink drops everything.
type Sink interface {
	Output(ch protocol.Channel, p []byte)
	Display(d protocol.Display)
}

// Ping asks the agent for a sign of life and says how long it took.
func (l *Conn) Ping(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	err := l.do(ctx, protocol.OpPing, nil, nil, nil, 0, nil)
	return time.Since(start), err
}

// Run runs code in a kernel. A run that fails, is stopped or loses its kernel
// is a result, not an error. When ctx ends the run is ended, too, and its result
// says Stopped "cancelled"; only if the agent does not answer within the grace
// and five seconds is the cause of ctx the error.
func (l *Conn) Run(ctx context.Context, x protocol.Run, code []byte, s Sink) (protocol.RunResult, error) {
	var res protocol.RunResult
	if len(code) > protocol.MaxCode {
		return res, &protocol.Error{Code: protocol.CodeTooLarge, Message: fmt.Sprintf("code of %d bytes is longer than %d; write it to a file", len(code), protocol.MaxCode)}
	}
	if code == nil {
		code = []byte{}
	}
	err := l.doBytes(ctx, protocol.OpRun, x, code, nil, outputTo(s), grace(x.GraceMS), &res)
	return res, err
}

// Kernel starts, stops or restarts a kernel.
func (l *Conn) Kernel(ctx context.Context, x protocol.Kernel) (protocol.KernelResult, error) {
	var res protocol.KernelResult
	err := l.do(ctx, protocol.OpKernel, x, nil, nil, defaultGrace, &res)
	return res, err
}

// Exec runs a command. stdin, if not nil, is read until its end or the
// command's, in a goroutine of its own, which ends when the Read under way then
// returns. When ctx ends the command is ended, as with Run. A Background
// command goes on when Exec has returned.
func (l *Conn) Exec(ctx context.Context, x protocol.Exec, stdin io.Reader, s Sink) (protocol.ExecResult, error) {
	var res protocol.ExecResult
	x.Stdin = stdin != nil
	o, err := l.start(ctx, protocol.OpExec, x)
	if err != nil {
		return res, err
	}
	defer close(o.quit)
	stop := context.AfterFunc(ctx, o.sendCancel)
	defer stop()
	l.out.Wake()
	if stdin != nil {
		go func() {
			if o.sendBody(ctx, protocol.Stdin, nil, stdin) != nil {
				// A reader that fails is one that ends: the command decides.
				o.put(protocol.Header{Type: protocol.EOF, Channel: protocol.Stdin, Op: o.id}, nil)
				l.out.Wake()
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
func (l *Conn) Attach(ctx context.Context, x protocol.Attach, s Sink) (protocol.ExecResult, error) {
	var res protocol.ExecResult
	err := l.do(ctx, protocol.OpAttach, x, nil, outputTo(s), 0, &res)
	return res, err
}

// Signal sends a signal to a background process and its group.
func (l *Conn) Signal(ctx context.Context, x protocol.Signal) error {
	return l.do(ctx, protocol.OpSignal, x, nil, nil, 0, nil)
}

// PS lists the background processes, the newest first.
func (l *Conn) PS(ctx context.Context) (protocol.PSResult, error) {
	var res protocol.PSResult
	err := l.do(ctx, protocol.OpPS, nil, nil, nil, 0, &res)
	return res, err
}

// Read writes the content of a regular file to w. It returns w's error if that
// fails.
func (l *Conn) Read(ctx context.Context, x protocol.Read, w io.Writer) (protocol.FileInfo, error) {
	var res protocol.FileInfo
	err := l.do(ctx, protocol.OpRead, x, nil, bodyTo(w), 0, &res)
	return res, err
}

// Write writes a file from r, whole or not at all. It returns r's error if that
// fails.
func (l *Conn) Write(ctx context.Context, x protocol.Write, r io.Reader) (protocol.FileInfo, error) {
	var res protocol.FileInfo
	err := l.do(ctx, protocol.OpWrite, x, r, nil, 0, &res)
	return res, err
}

// Stat describes a file.
func (l *Conn) Stat(ctx context.Context, path string) (protocol.FileInfo, error) {
	var res protocol.FileInfo
	err := l.do(ctx, protocol.OpStat, protocol.Path{Path: path}, nil, nil, 0, &res)
	return res, err
}

// List lists a directory.
func (l *Conn) List(ctx context.Context, x protocol.List) (protocol.ListResult, error) {
	var res protocol.ListResult
	err := l.do(ctx, protocol.OpList, x, nil, nil, 0, &res)
	return res, err
}

// Mkdir makes a directory.
func (l *Conn) Mkdir(ctx context.Context, x protocol.Mkdir) (protocol.FileInfo, error) {
	var res protocol.FileInfo
	err := l.do(ctx, protocol.OpMkdir, x, nil, nil, 0, &res)
	return res, err
}

// Remove removes a file or directory.
func (l *Conn) Remove(ctx context.Context, x protocol.Remove) error {
	return l.do(ctx, protocol.OpRemove, x, nil, nil, 0, nil)
}

// Archive writes a tar archive of a file or directory to w.
func (l *Conn) Archive(ctx context.Context, path string, w io.Writer) error {
	return l.do(ctx, protocol.OpArchive, protocol.Path{Path: path}, nil, bodyTo(w), 0, nil)
}

// Extract unpacks a tar archive into a directory.
func (l *Conn) Extract(ctx context.Context, path string, r io.Reader) error {
	return l.do(ctx, protocol.OpExtract, protocol.Extract{Path: path}, r, nil, 0, nil)
}

// Backup writes a tar archive of the home directory to w.
func (l *Conn) Backup(ctx context.Context, x protocol.Backup, w io.Writer) (protocol.BackupResult, error) {
	var res protocol.BackupResult
	err := l.do(ctx, protocol.OpBackup, x, nil, bodyTo(w), 0, &res)
	return res, err
}

// Unpack unpacks an archive that Backup wrote into the home directory.
func (l *Conn) Unpack(ctx context.Context, r io.Reader) error {
	return l.do(ctx, protocol.OpExtract, protocol.Extract{Path: ".", Backup: true}, r, nil, 0, nil)
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
	return func(ch protocol.Channel, _ bool, p []byte) error {
		if ch != protocol.Body || len(p) == 0 {
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
	return func(ch protocol.Channel, more bool, p []byte) error {
		switch ch {
		case protocol.Stdout, protocol.Stderr:
			if len(p) > 0 {
				s.Output(ch, p)
			}
		case protocol.Displays:
			if len(display)+len(p) > protocol.MaxDisplay {
				return fmt.Errorf("%w: a display of more than %d bytes", protocol.ErrFrame, protocol.MaxDisplay)
			}
			if more {
				display = append(display, p...)
				return nil
			}
			if len(display) > 0 {
				p = append(display, p...)
				display = nil
			}
			var d protocol.Display
			if err := json.Unmarshal(p, &d); err != nil {
				return fmt.Errorf("%w: display: %w", protocol.ErrFrame, err)
			}
			s.Display(d)
		}
		return nil
	}
}
