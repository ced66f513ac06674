// Package child runs programs that speak MCP over their standard input and output. The
// program starts with the connection. When the connection closes, the program ends,
// together with all processes that it has started: `npx` alone makes three.
//
// The caller decides what the program may see and where it runs: it inherits nothing
// from the environment of this process. The caller also decides whether it may be
// started at all.
package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/visible"
	"github.com/glovebox-dev/glovebox/mcpkit/internal/stream"
)

const (
	// Grace is the default time between closing a program's input and SIGTERM. Most
	// programs that react to the end of their input exit at once.
	Grace = 500 * time.Millisecond
	// termFactor times Grace is the time between SIGTERM and SIGKILL, for programs that
	// save state.
	termFactor = 10
	// drainDelay bounds the wait for other processes that hold the program's streams
	// open.
	drainDelay = 200 * time.Millisecond
	// maxTail bounds the part of standard error that is kept to explain an exit.
	maxTail = 2 << 10
)

// A Command is a program to run. It is an [mcp.Transport]: Connect starts the program.
type Command struct {
	// Name is the name of the server, for errors.
	Name string
	// Argv is the program and its arguments. A program without a slash is looked up on
	// the PATH of this process.
	Argv []string
	// Dir is the working directory; empty means that of this process.
	Dir string
	// Env is the whole environment, as KEY=value.
	Env []string
	// Stderr receives standard error; nil discards it. Writes are sequential and end
	// with the connection.
	Stderr io.Writer
	// Grace is the time between closing the input and SIGTERM; ten times as long is the
	// time between SIGTERM and SIGKILL. 0 means [Grace].
	Grace time.Duration
	// Idle, if not 0, shortens Grace for a program that does not react to the end of
	// its input: during Idle, the program and its descendants used less than a tenth of
	// that time as processor time, and none waits for a processor or a disk. Many
	// programs never exit by themselves, because a timer or a connection keeps them.
	// This needs Linux; elsewhere Grace applies.
	Idle time.Duration
	// Stream configures how output is read.
	Stream stream.Options
}

var _ mcp.Transport = (*Command)(nil)

// ExitError reports that a program exited before the connection was closed.
type ExitError struct {
	Name  string
	State string // such as "exit status 1"
	Words string // the end of standard error; may be empty
	// Remedy is advice for the user; empty if none is known.
	Remedy string
}

func (e *ExitError) Error() string {
	text := fmt.Sprintf("mcp server %q ended: %s", e.Name, e.State)
	if e.Words != "" {
		text += "; it last wrote: " + e.Words
	}
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	return text
}

// Connect starts the program. Close of the connection closes its input, then sends
// SIGTERM, then SIGKILL, and returns when the program and all processes in its process
// group have ended. Processes that have left the group are not found.
//
// ctx bounds the start only.
func (c *Command) Connect(ctx context.Context) (mcp.Connection, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return nil, fmt.Errorf("start mcp server %q: it has no command", c.Name)
	}
	p, err := c.start()
	if err != nil {
		return nil, fmt.Errorf("start mcp server %q: %w", c.Name, withRemedy(c.Argv[0], err))
	}
	return &conn{stream.New(p, c.Stream), p}, nil
}

// withRemedy adds a remedy to an error.
func withRemedy(program string, err error) error {
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%w; install %q, or give its full path in command", err, program)
	}
	return err
}

func (c *Command) start() (*process, error) {
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		inRead.Close()
		inWrite.Close()
		return nil, err
	}
	p := &process{name: c.Name, in: inWrite, out: outRead, grace: c.Grace, idle: c.Idle, ended: make(chan struct{})}
	if p.grace <= 0 {
		p.grace = Grace
	}
	if p.idle <= 0 {
		p.idle = p.grace
	}
	stderr := c.Stderr
	if stderr == nil {
		stderr = io.Discard
	}
	prepare := func() *exec.Cmd {
		cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
		cmd.Dir, cmd.Env = c.Dir, c.Env
		if cmd.Env == nil {
			cmd.Env = []string{} // nil would inherit the environment
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = inRead, outWrite, io.MultiWriter(&p.stderr, stderr)
		cmd.WaitDelay = drainDelay
		ownSession(cmd)
		return cmd
	}
	cmd := prepare()
	namespaced := asUser(cmd)
	err = cmd.Start()
	if namespaced && noNamespace(err) {
		cmd = prepare() // as root in name, which most programs bear
		err = cmd.Start()
	}
	inRead.Close()
	outWrite.Close()
	if err != nil {
		inWrite.Close()
		outRead.Close()
		return nil, err
	}
	p.cmd = cmd
	go p.wait()
	return p, nil
}

// conn is the connection to a program.
type conn struct {
	*stream.Conn
	p *process
}

// Process returns the process id of the program.
func (c *conn) Process() int { return c.p.cmd.Process.Pid }

// process is a running program, as a stream.
type process struct {
	name   string
	cmd    *exec.Cmd
	in     *os.File
	out    *os.File
	stderr tail
	grace  time.Duration
	idle   time.Duration

	ended chan struct{} // closed when the process is reaped
	state string        // valid after ended is closed

	closing sync.Once
}

// wait reaps the program and kills the rest of its process group, whose processes have
// lost their peer. The group's id is not reused before all other ids were used.
func (p *process) wait() {
	err := p.cmd.Wait()
	killGroup(p.cmd.Process)
	p.state = "exit status 0"
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		p.state = err.Error()
	} else if s := p.cmd.ProcessState; s != nil {
		p.state = s.String()
	}
	close(p.ended)
}

// Read implements [io.Reader]. If the program exited by itself, the error is an
// [*ExitError].
func (p *process) Read(b []byte) (int, error) {
	n, err := p.out.Read(b)
	if n > 0 || err == nil || errors.Is(err, os.ErrClosed) {
		return n, err
	}
	return 0, p.explain(fmt.Errorf("mcp server %q has closed its output", p.name))
}

// Write implements [io.Writer], with errors like those of Read.
func (p *process) Write(b []byte) (int, error) {
	n, err := p.in.Write(b)
	if err != nil && !errors.Is(err, os.ErrClosed) {
		err = p.explain(err)
	}
	return n, err
}

// explain returns an [*ExitError] if the program exits soon, and otherwise err: the
// program has closed a stream and still runs.
func (p *process) explain(err error) error {
	if p.endsWithin(p.grace) {
		words := p.stderr.String()
		return &ExitError{p.name, p.state, words, remedyFor(p.cmd.Args, words)}
	}
	return err
}

// Close ends the program and returns when it has exited.
func (p *process) Close() error {
	p.closing.Do(func() {
		p.in.Close()
		if !p.endsByItself() {
			terminate(p.cmd.Process)
			if !p.endsWithin(termFactor * p.grace) {
				killGroup(p.cmd.Process)
			}
		}
		<-p.ended
		p.out.Close()
	})
	<-p.ended
	return nil
}

// activity describes a program and its living descendants.
type activity struct {
	used   time.Duration // processor time so far
	active bool          // one of them is computing or waiting for a processor or a disk
}

// endsByItself waits for the program to exit, as long as grace and idle allow.
func (p *process) endsByItself() bool {
	before, known := activityOf(p.cmd.Process.Pid)
	for left := p.grace; left > 0; left -= p.idle {
		if p.endsWithin(min(left, p.idle)) {
			return true
		}
		now, still := activityOf(p.cmd.Process.Pid)
		// If the sum shrinks, a descendant has exited, which is progress.
		if used := now.used - before.used; known && still && !now.active && used >= 0 && used < p.idle/10 {
			return false
		}
		before, known = now, still
	}
	return false
}

func (p *process) endsWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.ended:
		return true
	case <-timer.C:
		return false
	}
}

// tail keeps the end of its input.
type tail struct {
	mu sync.Mutex
	b  []byte // guarded by mu
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p[max(0, len(p)-maxTail):]...)
	t.b = t.b[max(0, len(t.b)-maxTail):]
	return len(p), nil
}

// String returns the end as a single line without control characters, and with hidden
// characters escaped.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return '\n'
		case r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\uFFFD':
			return -1
		}
		return r
	}, string(t.b))
	return visible.Line(strings.Join(strings.FieldsFunc(strings.TrimSpace(text), func(r rune) bool { return r == '\n' }), " | "))
}
