//go:build linux

package microsandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/truncate"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

// stream is a running command of msb with its standard input and output.
type stream struct {
	in, out *os.File
	cmd     *exec.Cmd
	ended   chan struct{}
}

// stream starts a command. The caller closes it. ended gets the last line of the command's
// standard error, if it has written any, before Close returns.
func (c *client) stream(cmd *exec.Cmd, ended func(words string)) (*stream, error) {
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w: %w", err, engine.ErrExhausted)
	}
	defer inR.Close()
	outR, outW, err := os.Pipe()
	if err != nil {
		inW.Close()
		return nil, fmt.Errorf("make pipe: %w: %w", err, engine.ErrExhausted)
	}
	defer outW.Close()
	words := new(tail)
	s := &stream{in: inW, out: outR, cmd: cmd, ended: make(chan struct{})}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, words
	if err := cmd.Start(); err != nil {
		inW.Close()
		outR.Close()
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM) {
			err = fmt.Errorf("%w: %w", err, engine.ErrExhausted)
		}
		return nil, fmt.Errorf("start msb: %w", err)
	}
	go func() {
		defer close(s.ended)
		cmd.Wait() // how it has ended does not matter: the stream has
		if last := words.last(); last != "" {
			ended(last)
		}
	}()
	return s, nil
}

// Read reads the command's output.
func (s *stream) Read(p []byte) (int, error) { return s.out.Read(p) }

// Write writes to the command's input. It returns when the stream is closed.
func (s *stream) Write(p []byte) (int, error) { return s.in.Write(p) }

// Close kills the command and returns when it has ended. It may be called repeatedly.
func (s *stream) Close() error {
	select {
	case <-s.ended:
	default:
		killGroup(s.cmd) // fails if it has just ended
	}
	errIn, errOut := s.in.Close(), s.out.Close()
	<-s.ended
	return errors.Join(errIn, errOut)
}

// killGroup kills a command of msb with what it has started.
func killGroup(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

// maxTail bounds what is kept of a command's standard error.
const maxTail = 4 << 10

// tail keeps the last bytes that are written.
type tail struct {
	mu sync.Mutex
	b  []byte // guarded by mu
}

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p[max(0, len(p)-maxTail):]...)
	if more := len(t.b) - maxTail; more > 0 {
		t.b = append(t.b[:0], t.b[more:]...)
	}
	return len(p), nil
}

// last returns the last line that begins with "error: ", or else the last line, printable
// and of maxDetail bytes at most.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.b)), "\n")
	line := lines[len(lines)-1]
	for i := len(lines) - 1; i >= 0; i-- {
		if strings.HasPrefix(lines[i], "error: ") {
			line = lines[i]
			break
		}
	}
	return truncate.Bytes(visible.Line(line), maxDetail)
}
