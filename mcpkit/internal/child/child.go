// Package child runs programs that speak MCP over their standard input and output.
// A program is started with the connection and is gone after it, with whatever it
// has started itself: `npx` alone makes three processes.
//
// What a program may see and where it runs is for the caller to say: nothing of this
// process's environment is handed on by itself. Where a program may be started at
// all is decided before this package is asked.
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

	"github.com/glovebox-dev/glovebox/mcpkit/internal/stream"
)

const (
	// Grace is what a program has to notice the end of its input. Most that do end
	// at once.
	Grace = 500 * time.Millisecond
	// terms is how many times as long one has to save what it has after it was told
	// to terminate. Those that have nothing to save end at once.
	terms = 10
	// drainDelay bounds the wait for what others hold open of its streams.
	drainDelay = 200 * time.Millisecond
	// lastWords bounds what is kept of the error stream to explain an end.
	lastWords = 2 << 10
)

// A Command is a program to run. It is an [mcp.Transport]: the program is started
// by Connect.
type Command struct {
	// Name is the server's, for messages.
	Name string
	// Argv is the program, looked up on the PATH of this process if it has no
	// slash, and its arguments.
	Argv []string
	// Dir is where it runs; "" is here.
	Dir string
	// Env is its whole environment, as KEY=value.
	Env []string
	// Stderr gets its error stream; nil discards it. Writes come one after another
	// and end with the connection.
	Stderr io.Writer
	// Grace bounds the wait for its end after the end of its input, and ten times of
	// it that after being told to terminate. 0 means [Grace].
	Grace time.Duration
	// Idle, if it is not 0, is how much of Grace a program has that does nothing
	// about the end of its input: that in so long a time has used less than a tenth
	// of it as processor time, with all that it has started, and does not wait for
	// a processor or a disk. Many never end by themselves, because a timer or a
	// connection keeps them; what works on its end has all of Grace. So has any
	// program where the system does not tell of others, which only Linux does.
	Idle time.Duration
	// Stream says how its output is read.
	Stream stream.Options
}

var _ mcp.Transport = (*Command)(nil)

// ExitError says that a program ended before the connection was closed.
type ExitError struct {
	Name  string
	State string // such as "exit status 1"
	Words string // the last of its error stream; may be empty
}

func (e *ExitError) Error() string {
	if e.Words == "" {
		return fmt.Sprintf("mcp server %q ended: %s", e.Name, e.State)
	}
	return fmt.Sprintf("mcp server %q ended: %s; it last wrote: %s", e.Name, e.State, e.Words)
}

// Connect starts the program. The connection's Close ends its input, then asks the
// program to terminate, then kills it, and returns when it is gone and with it all
// that it has started. Only what has left the program's process group gets away.
//
// ctx bounds the start alone.
func (c *Command) Connect(ctx context.Context) (mcp.Connection, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return nil, fmt.Errorf("start mcp server %q: it has no command", c.Name)
	}
	p, err := c.start()
	if err != nil {
		return nil, fmt.Errorf("start mcp server %q: %w", c.Name, explain(c.Argv[0], err))
	}
	return &conn{stream.New(p, c.Stream), p}, nil
}

// explain adds to an error what to do about it.
func explain(program string, err error) error {
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
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	cmd.Dir, cmd.Env = c.Dir, c.Env
	if cmd.Env == nil {
		cmd.Env = []string{} // nil would be this process's
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inRead, outWrite, io.MultiWriter(&p.words, stderr)
	cmd.WaitDelay = drainDelay
	ownGroup(cmd)
	err = cmd.Start()
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

// conn tells why its program has ended.
type conn struct {
	*stream.Conn
	p *process
}

// Process returns the number of the program's process, for those who show it.
func (c *conn) Process() int { return c.p.cmd.Process.Pid }

// process is a running program as a stream.
type process struct {
	name  string
	cmd   *exec.Cmd
	in    *os.File
	out   *os.File
	words tail
	grace time.Duration
	idle  time.Duration

	ended chan struct{} // closed when it is reaped
	state string        // valid after ended

	closing sync.Once
}

// wait owns the program's end. What the program leaves of its group is killed: it
// has nobody to talk to. A group's number is not given to another process before
// all other numbers have had their turn.
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

// Read implements [io.Reader]. At the end of a program that was not asked to end
// the error says how that was.
func (p *process) Read(b []byte) (int, error) {
	n, err := p.out.Read(b)
	if n > 0 || err == nil || errors.Is(err, os.ErrClosed) {
		return n, err
	}
	return 0, p.explain(fmt.Errorf("mcp server %q has closed its output", p.name))
}

// Write implements [io.Writer], with errors as those of Read.
func (p *process) Write(b []byte) (int, error) {
	n, err := p.in.Write(b)
	if err != nil && !errors.Is(err, os.ErrClosed) {
		err = p.explain(err)
	}
	return n, err
}

// explain says how the program ended, or returns err if it has closed a stream and
// lives on.
func (p *process) explain(err error) error {
	if p.endsWithin(p.grace) {
		return &ExitError{p.name, p.state, p.words.String()}
	}
	return err
}

// Close ends the program and returns when it is gone.
func (p *process) Close() error {
	p.closing.Do(func() {
		p.in.Close()
		if !p.endsByItself() {
			terminate(p.cmd.Process)
			if !p.endsWithin(terms * p.grace) {
				killGroup(p.cmd.Process)
			}
		}
		<-p.ended
		p.out.Close()
	})
	<-p.ended
	return nil
}

// look is what a program and its living descendants do.
type look struct {
	used   time.Duration // processor time so far
	active bool          // one of them computes just now, or would if it could
}

// endsByItself waits for the end, for as long as Grace and Idle say.
func (p *process) endsByItself() bool {
	before, known := lookAt(p.cmd.Process.Pid)
	for left := p.grace; left > 0; left -= p.idle {
		if p.endsWithin(min(left, p.idle)) {
			return true
		}
		now, still := lookAt(p.cmd.Process.Pid)
		// Less than before is what one has used that has ended, which is progress.
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

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte // guarded by mu
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p[max(0, len(p)-lastWords):]...)
	t.b = t.b[max(0, len(t.b)-lastWords):]
	return len(p), nil
}

// String is the end in one line that cannot move a terminal's cursor.
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
	return strings.Join(strings.FieldsFunc(strings.TrimSpace(text), func(r rune) bool { return r == '\n' }), " | ")
}
