package client

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// Sink consumes the output of a run or command: in order, never concurrently, in the
// goroutine of the caller. It must not keep p. While it blocks, flow control stops the
// guest's process; other operations continue. A nil Sink drops everything.
type Sink interface {
	Output(ch protocol.Channel, p []byte)
	Display(d protocol.Display)
}

// Ping checks that the agent responds and returns the round-trip time.
func (c *Conn) Ping(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	err := c.do(ctx, protocol.OpPing, nil, nil, nil, 0, nil)
	return time.Since(start), err
}

// Run runs code in a kernel. A run that fails, is stopped or loses its kernel is a
// result, not an error. When ctx is done, the run is ended and its result has Stopped
// "cancelled"; only if the agent does not answer within the grace period and five
// seconds, the error is the cause of ctx.
func (c *Conn) Run(ctx context.Context, x protocol.Run, code []byte, s Sink) (protocol.RunResult, error) {
	return c.RunWithCalls(ctx, x, code, s, nil)
}

// RunWithCalls is Run for code that may call the host. h answers the calls, and is not
// used after RunWithCalls returns.
func (c *Conn) RunWithCalls(ctx context.Context, x protocol.Run, code []byte, s Sink, h Host) (protocol.RunResult, error) {
	var res protocol.RunResult
	if len(code) > protocol.MaxCode {
		return res, &protocol.Error{Code: protocol.CodeTooLarge, Message: fmt.Sprintf("code of %d bytes is longer than %d; write it to a file", len(code), protocol.MaxCode)}
	}
	if code == nil {
		code = []byte{}
	}
	var calls *toolCallSet
	if x.ToolCalls = h != nil; x.ToolCalls {
		calls = c.newToolCallSet(ctx, h)
		defer calls.end()
	}
	err := c.doBytes(ctx, protocol.OpRun, x, code, nil, calls, outputTo(s), grace(x.GraceMS), &res)
	return res, err
}

// Kernel starts, stops or restarts a kernel.
func (c *Conn) Kernel(ctx context.Context, x protocol.Kernel) (protocol.KernelResult, error) {
	var res protocol.KernelResult
	err := c.do(ctx, protocol.OpKernel, x, nil, nil, defaultGrace, &res)
	return res, err
}

// Exec runs a command. stdin, if not nil, is read until its end or the command's, in a
// goroutine that ends when its current Read returns. When ctx is done, the command is
// ended as in Run. A Background command continues after Exec.
func (c *Conn) Exec(ctx context.Context, x protocol.Exec, stdin io.Reader, s Sink) (protocol.ExecResult, error) {
	return c.ExecWithCalls(ctx, x, stdin, s, nil)
}

// ExecWithCalls is Exec for a command that may call the host, unless it is a Background
// command. h is as in RunWithCalls.
func (c *Conn) ExecWithCalls(ctx context.Context, x protocol.Exec, stdin io.Reader, s Sink, h Host) (protocol.ExecResult, error) {
	var res protocol.ExecResult
	x.Stdin = stdin != nil
	var calls *toolCallSet
	if x.ToolCalls = h != nil && !x.Background; x.ToolCalls {
		calls = c.newToolCallSet(ctx, h)
		defer calls.end()
	}
	o, err := c.start(ctx, protocol.OpExec, x, calls)
	if err != nil {
		return res, err
	}
	defer close(o.quit)
	defer o.cancelOn(ctx)()
	c.out.Wake()
	if stdin != nil {
		go func() {
			if o.sendBody(ctx, protocol.Stdin, nil, stdin) != nil {
				// A failing reader counts as the end of input.
				o.put(protocol.Header{Type: protocol.EOF, Channel: protocol.Stdin, Op: o.id}, nil)
				c.out.Wake()
			}
		}()
	}
	err = o.finish(ctx, outputTo(s), grace(x.GraceMS), &res)
	return res, err
}

// Attach replays the kept output of a background process and, with Follow, continues
// until the process ends or ctx is done, which is not an error. In the result, Bytes of
// each stream is the offset to continue from, Omitted the number of requested bytes no
// longer kept.
func (c *Conn) Attach(ctx context.Context, x protocol.Attach, s Sink) (protocol.ExecResult, error) {
	var res protocol.ExecResult
	err := c.do(ctx, protocol.OpAttach, x, nil, outputTo(s), 0, &res)
	return res, err
}

// Signal sends a signal to a background process and its group.
func (c *Conn) Signal(ctx context.Context, x protocol.Signal) error {
	return c.do(ctx, protocol.OpSignal, x, nil, nil, 0, nil)
}

// PS lists the background processes, newest first.
func (c *Conn) PS(ctx context.Context) (protocol.PSResult, error) {
	var res protocol.PSResult
	err := c.do(ctx, protocol.OpPS, nil, nil, nil, 0, &res)
	return res, err
}

// Read copies the content of a regular file to w. It returns w's error if writing
// fails.
func (c *Conn) Read(ctx context.Context, x protocol.Read, w io.Writer) (protocol.FileInfo, error) {
	var res protocol.FileInfo
	err := c.do(ctx, protocol.OpRead, x, nil, bodyTo(w), 0, &res)
	return res, err
}

// Write replaces a file with the content of r, atomically. It returns r's error if
// reading fails.
func (c *Conn) Write(ctx context.Context, x protocol.Write, r io.Reader) (protocol.FileInfo, error) {
	var res protocol.FileInfo
	err := c.do(ctx, protocol.OpWrite, x, r, nil, 0, &res)
	return res, err
}

// Stat describes a file.
func (c *Conn) Stat(ctx context.Context, path string) (protocol.FileInfo, error) {
	var res protocol.FileInfo
	err := c.do(ctx, protocol.OpStat, protocol.Path{Path: path}, nil, nil, 0, &res)
	return res, err
}

// List lists a directory.
func (c *Conn) List(ctx context.Context, x protocol.List) (protocol.ListResult, error) {
	var res protocol.ListResult
	err := c.do(ctx, protocol.OpList, x, nil, nil, 0, &res)
	return res, err
}

// Mkdir creates a directory.
func (c *Conn) Mkdir(ctx context.Context, x protocol.Mkdir) (protocol.FileInfo, error) {
	var res protocol.FileInfo
	err := c.do(ctx, protocol.OpMkdir, x, nil, nil, 0, &res)
	return res, err
}

// Remove removes a file or directory.
func (c *Conn) Remove(ctx context.Context, x protocol.Remove) error {
	return c.do(ctx, protocol.OpRemove, x, nil, nil, 0, nil)
}

// Archive writes a tar archive of a file or directory to w.
func (c *Conn) Archive(ctx context.Context, path string, w io.Writer) error {
	return c.do(ctx, protocol.OpArchive, protocol.Path{Path: path}, nil, bodyTo(w), 0, nil)
}

// Extract unpacks a tar archive into a directory.
func (c *Conn) Extract(ctx context.Context, path string, r io.Reader) error {
	return c.do(ctx, protocol.OpExtract, protocol.Extract{Path: path}, r, nil, 0, nil)
}

// Backup writes a tar archive of the home directory to w. When ctx is done it returns at once:
// an agent that looks at thousands of files does not notice Cancel, and its answer says nothing.
func (c *Conn) Backup(ctx context.Context, x protocol.Backup, w io.Writer) (protocol.BackupResult, error) {
	var res protocol.BackupResult
	err := c.do(ctx, protocol.OpBackup, x, nil, bodyTo(w), -cancelTime, &res)
	return res, err
}

// Unpack unpacks an archive that Backup wrote into the home directory.
func (c *Conn) Unpack(ctx context.Context, r io.Reader) error {
	return c.do(ctx, protocol.OpExtract, protocol.Extract{Path: ".", Backup: true}, r, nil, 0, nil)
}

func grace(ms int64) time.Duration {
	const most = time.Hour
	if ms <= 0 {
		return defaultGrace
	}
	return min(time.Duration(min(ms, most.Milliseconds()))*time.Millisecond, most)
}

// bodyTo writes the body to w.
func bodyTo(w io.Writer) output {
	return func(ch protocol.Channel, _ bool, p []byte) error {
		if ch != protocol.Body || len(p) == 0 {
			return nil
		}
		_, err := w.Write(p)
		return err
	}
}

// outputTo delivers output and displays to s.
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
			d, err := protocol.ParseDisplay(p)
			if err != nil {
				return fmt.Errorf("%w: %w", protocol.ErrFrame, err)
			}
			s.Display(d)
		}
		return nil
	}
}
