package enginetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"sync"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// box is a guest of a test, with a connection to its agent.
type box struct {
	engine.Guest
	t *tester

	user  User
	l     *client.Conn // nil until talk
	probe string       // path of the probe program inside; empty until install
}

// dial opens the stream to the agent.
func (b *box) dial() io.ReadWriteCloser {
	b.t.Helper()
	conn, err := b.tryDial()
	b.t.must("dial "+b.ID(), err)
	return conn
}

func (b *box) tryDial() (io.ReadWriteCloser, error) {
	var conn io.ReadWriteCloser
	err := b.t.call("dial", func(ctx context.Context) (err error) {
		conn, err = b.Dial(ctx)
		return err
	})
	return conn, err
}

// hello configures the agent of a guest.
func (b *box) hello() protocol.Hello {
	b.user = b.t.h.User(b.t.e, b.ID())
	limits := b.t.spec().Limits
	return protocol.Hello{
		Version: protocol.Version,
		Home:    b.user.Home, Scratch: b.user.Scratch,
		UID: b.user.UID, GID: b.user.GID, Env: b.user.Env,
		PIDs: limits.PIDs,
	}
}

// talk connects to the agent. A second call resumes the connection on a new stream.
func (b *box) talk() *box {
	b.t.Helper()
	b.t.must("open link to "+b.ID(), b.tryTalk(b.hello()))
	return b
}

func (b *box) tryTalk(hello protocol.Hello) error {
	if b.l != nil {
		return b.tryResumeLink(hello)
	}
	return b.openLink(hello, client.Open)
}

// tryResumeLink connects to an agent that had another connection.
func (b *box) tryResumeLink(hello protocol.Hello) error { return b.openLink(hello, client.Resume) }

func (b *box) openLink(hello protocol.Hello, open func(context.Context, client.Dialer, client.Options) (*client.Conn, error)) error {
	b.t.Helper()
	b.unlink()
	return b.t.call("open link", func(ctx context.Context) error {
		l, err := open(ctx, b.Guest, client.Options{Hello: hello})
		if err == nil {
			b.l = l
		}
		return err
	})
}

// unlink closes the connection, if there is one, and waits for its goroutines.
func (b *box) unlink() {
	if b.l != nil {
		b.t.inTime("close link", b.t.h.Timeout, func() { b.l.Close() })
	}
}

// ping fails the test if the agent does not answer.
func (b *box) ping() {
	b.t.Helper()
	err := b.t.call("ping", func(ctx context.Context) error {
		_, err := b.l.Ping(ctx)
		return err
	})
	b.t.must("ping "+b.ID(), err)
}

// result is the outcome of a command.
type result struct {
	protocol.ExecResult
	stdout, stderr string
	err            error
}

// sink collects output. It calls onOutput, if set, with all of stdout so far.
type sink struct {
	mu       sync.Mutex
	out, err bytes.Buffer     // guarded by mu
	onOutput func(all []byte) // called with mu held
}

// Output keeps a piece of output.
func (s *sink) Output(ch protocol.Channel, p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ch == protocol.Stderr {
		s.err.Write(p)
		return
	}
	s.out.Write(p)
	if s.onOutput != nil {
		s.onOutput(s.out.Bytes())
	}
}

// Display is not called for commands.
func (s *sink) Display(protocol.Display) {}

// size returns the length of stdout so far.
func (s *sink) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Len()
}

func (s *sink) stdout() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// exec runs a command to its end.
func (b *box) exec(cmd protocol.Exec, stdin io.Reader) result {
	b.t.Helper()
	var r result
	b.t.call("exec", func(ctx context.Context) error { // the error is in r
		r = b.execContext(ctx, cmd, stdin)
		return nil
	})
	return r
}

func (b *box) execContext(ctx context.Context, cmd protocol.Exec, stdin io.Reader) result {
	var s sink
	res, err := b.l.Exec(ctx, cmd, stdin, &s)
	return result{ExecResult: res, stdout: s.stdout(), stderr: s.err.String(), err: err}
}

// sh runs a line of shell that must succeed and returns its output.
func (b *box) sh(line string) string {
	b.t.Helper()
	return b.output(protocol.Exec{Shell: line})
}

// output runs a command that must succeed and returns its output.
func (b *box) output(cmd protocol.Exec) string {
	b.t.Helper()
	r := b.exec(cmd, nil)
	if r.err != nil || r.Code != 0 {
		b.t.Fatalf("%q %s in %s: exit code %d, stderr %q, %v", cmd.Argv, cmd.Shell, b.ID(), r.Code, r.stderr, r.err)
	}
	return r.stdout
}

// install puts the probe program into the user's home.
func (b *box) install() *box {
	b.t.Helper()
	program, err := os.ReadFile(b.t.probe)
	b.t.must("read probe", err)
	b.probe = path.Join(b.user.Home, "probe")
	b.t.must("install probe in "+b.ID(), b.write(b.probe, 0o755, bytes.NewReader(program)))
	return b
}

// write writes a file.
func (b *box) write(name string, mode uint32, content io.Reader) error {
	b.t.Helper()
	return b.t.call("write", func(ctx context.Context) error {
		_, err := b.l.Write(ctx, protocol.Write{Path: name, Mode: mode}, content)
		return err
	})
}

// look runs the probe program inside and returns the lines that it prints.
func (b *box) look(args ...string) []string {
	b.t.Helper()
	out := strings.TrimSpace(b.output(protocol.Exec{Argv: append([]string{b.probe}, args...)}))
	if out == "" {
		return nil
	}
	return strings.Split(out, "\n")
}

// running is a command that has not ended.
type running struct {
	b    *box
	sink *sink
	done chan struct{} // closed at its end; res is valid then
	res  result
	stop context.CancelCauseFunc
}

// start runs a command without waiting. It is cancelled at the end of the test.
// Its standard input stays open until then.
func (b *box) start(cmd protocol.Exec) *running {
	ctx, cancel := context.WithCancelCause(b.t.Context())
	r := &running{b: b, sink: new(sink), done: make(chan struct{}), stop: cancel}
	stdin, hold := io.Pipe()
	l := b.l
	go func() {
		defer close(r.done)
		res, err := l.Exec(ctx, cmd, stdin, r.sink)
		r.res = result{ExecResult: res, stdout: r.sink.stdout(), err: err}
	}()
	b.t.Cleanup(func() {
		cancel(errStop)
		hold.Close()
		b.t.inTime("end of a cancelled command", b.t.h.Timeout, func() { <-r.done })
	})
	return r
}

// startProbe runs the probe program inside without waiting.
func (b *box) startProbe(args ...string) *running {
	return b.start(protocol.Exec{Argv: append([]string{b.probe}, args...)})
}

// says waits until the command has printed want.
func (r *running) says(want string) {
	r.b.t.Helper()
	r.b.t.eventually("output "+want, func() bool {
		select {
		case <-r.done:
			if !strings.Contains(r.sink.stdout(), want) {
				r.b.t.Fatalf("command ended without saying %q: %+v", want, r.res)
			}
			return true
		default:
			return strings.Contains(r.sink.stdout(), want)
		}
	})
}

// wait waits for the end of the command.
func (r *running) wait() result {
	r.b.t.Helper()
	r.b.t.inTime("end of a command", r.b.t.h.Timeout, func() { <-r.done })
	return r.res
}

// codeOf returns the code with which the agent refused an operation.
func codeOf(err error) protocol.Code {
	var e *protocol.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
