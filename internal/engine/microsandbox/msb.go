//go:build linux

package microsandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/truncate"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

const (
	// maxOutput bounds what is kept of the output of a command of msb.
	maxOutput = 4 << 20
	// maxErrors bounds what is kept of its errors: they begin with what went wrong.
	maxErrors = 16 << 10
	// maxDetail bounds the error of a command in a message.
	maxDetail = 400
	// commandWait bounds a command that starts no virtual machine.
	commandWait = 2 * time.Minute
	// createWait bounds the start of a virtual machine.
	createWait = 10 * time.Minute
	// pipeWait bounds the wait for pipes that a child of a command holds open.
	pipeWait = time.Second
)

// client runs commands of msb.
type client struct {
	path string   // of msb, absolute
	env  []string // its environment: nothing of this process that it does not need
}

func newClient(path, home string) *client {
	env := []string{"MSB_HOME=" + home, "HOME=" + home, "NO_COLOR=1", "LC_ALL=C.UTF-8"}
	for _, name := range []string{"PATH", "TMPDIR", "XDG_RUNTIME_DIR"} {
		if v := os.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return &client{path: path, env: env}
}

// command returns a command of msb in a session of its own: the signals of a terminal are
// for this process, which decides what becomes of its guests.
func (c *client) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.path, args...)
	cmd.Env = c.env
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = pipeWait
	cmd.Cancel = func() error { return killGroup(cmd) }
	return cmd
}

// run runs a command to its end and returns its output. The error of a command that
// failed is a *commandError, or the cause of ctx.
func (c *client) run(ctx context.Context, stdin io.Reader, args ...string) ([]byte, error) {
	cmd := c.command(ctx, args...)
	out, errs := &capped{max: maxOutput}, &capped{max: maxErrors}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, out, errs
	err := cmd.Run()
	switch {
	case ctx.Err() != nil && err != nil:
		return nil, fmt.Errorf("msb %s: %w", args[0], context.Cause(ctx))
	case errors.Is(err, exec.ErrWaitDelay): // it has succeeded, and a child holds its output
	case err != nil:
		return nil, &commandError{command: args[0], message: message(errs.b.Bytes()), err: err}
	}
	if out.cut {
		return nil, &commandError{command: args[0], message: fmt.Sprintf("the output is longer than %d bytes", maxOutput), err: errOutput}
	}
	return out.b.Bytes(), nil
}

// brief runs a command that answers soon, whatever becomes of its caller.
func (c *client) brief(args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), commandWait, errSlow)
	defer cancel()
	return c.run(ctx, nil, args...)
}

var (
	errOutput = errors.New("unusable output")
	errSlow   = fmt.Errorf("no answer in %v: %w", commandWait, engine.ErrUnavailable)
)

// commandError is the failure of a command of msb.
type commandError struct {
	command string
	message string // the first line of its errors, printable; may be empty
	err     error
}

func (e *commandError) Error() string {
	if e.message == "" {
		return fmt.Sprintf("msb %s: %v", e.command, e.err)
	}
	return fmt.Sprintf("msb %s: %s (%v)", e.command, e.message, e.err)
}
func (e *commandError) Unwrap() error { return e.err }

// says reports whether err is the failure of a command that says one of the phrases. msb
// has one exit code for all failures.
func says(err error, phrases ...string) bool {
	var e *commandError
	if !errors.As(err, &e) {
		return false
	}
	for _, p := range phrases {
		if strings.Contains(e.message, p) {
			return true
		}
	}
	return false
}

// message returns what msb's errors say: the lines "error: …" and those that explain it,
// "→ …", in one printable line.
func message(errs []byte) string {
	var parts []string
	for line := range strings.Lines(string(errs)) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "error:"); ok {
			parts = append(parts, strings.TrimSpace(rest))
		} else if rest, ok := strings.CutPrefix(line, "→"); ok && len(parts) > 0 {
			parts = append(parts, strings.TrimSpace(rest))
		}
	}
	if len(parts) == 0 {
		parts = []string{string(bytes.TrimSpace(errs))}
	}
	return truncate.Bytes(visible.Line(strings.Join(parts, "; ")), maxDetail)
}

// capped keeps the first bytes that are written and discards the rest.
type capped struct {
	b   bytes.Buffer
	max int
	cut bool // whether it has discarded something
}

func (c *capped) Write(p []byte) (int, error) {
	n := min(len(p), c.max-c.b.Len())
	c.b.Write(p[:n])
	c.cut = c.cut || n < len(p)
	return len(p), nil
}
