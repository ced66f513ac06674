//go:build linux

package cli

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// serverProcess is a running glovebox serve, a process of its own.
type serverProcess struct {
	t        *testing.T
	cmd      *exec.Cmd
	stdout   bytes.Buffer
	endpoint string
	log      chan string
}

var endpoint = regexp.MustCompile(`http://127\.0\.0\.1:\d+/mcp`)

func startServer(t *testing.T, state string, args ...string) *serverProcess {
	t.Helper()
	return startProgram(t, append([]string{"glovebox", "serve", "--port", "0", "--toolset", "all", "--state-dir", state}, args...)...)
}

// startProgram starts one of the programs of TestMain that is a server.
func startProgram(t *testing.T, args ...string) *serverProcess {
	t.Helper()
	return launch(t, endpoint, func(*exec.Cmd) {}, args...)
}

// launch is startProgram with a command that change modifies first. It returns when the
// log matches awaited.
func launch(t *testing.T, awaited *regexp.Regexp, change func(*exec.Cmd), args ...string) *serverProcess {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &serverProcess{t: t}
	s.cmd = &exec.Cmd{
		Path: exe, Args: args,
		Stdout:      &s.stdout,
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	}
	change(s.cmd)
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	found := s.follow(stderr, awaited)
	t.Cleanup(func() {
		s.cmd.Process.Kill()
		s.cmd.Wait() // an error if the test has waited
	})
	select {
	case s.endpoint = <-found:
	case log := <-s.log:
		t.Fatalf("the server ended:\n%s", log)
	case <-time.After(time.Minute):
		t.Fatalf("no %v in the log after a minute", awaited)
	}
	return s
}

// follow reads the log to its end; the channel gets the first match of awaited.
func (s *serverProcess) follow(stderr io.Reader, awaited *regexp.Regexp) <-chan string {
	s.log = make(chan string, 1)
	found := make(chan string, 1)
	go func() {
		var log strings.Builder
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			log.WriteString(lines.Text() + "\n")
			if url := awaited.FindString(lines.Text()); url != "" {
				select {
				case found <- url:
				default:
				}
			}
		}
		s.log <- log.String()
	}()
	return found
}

// connect returns a session of an ordinary client.
func (s *serverProcess) connect() *mcp.ClientSession {
	s.t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := c.Connect(s.t.Context(), &mcp.StreamableClientTransport{Endpoint: s.endpoint}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { session.Close() })
	return session
}

// python runs code in a session and returns its output.
func python(ctx context.Context, c *mcp.ClientSession, id, code string) (string, error) {
	res, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "execute_code", Arguments: map[string]any{"session_id": id, "code": code}})
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, part := range res.Content {
		if part, ok := part.(*mcp.TextContent); ok {
			text.WriteString(part.Text)
		}
	}
	return text.String(), nil
}

// wait returns the exit code and the log.
func (s *serverProcess) wait(limit time.Duration) (code int, log string) {
	s.t.Helper()
	select {
	case log = <-s.log:
	case <-time.After(limit):
		s.t.Fatalf("the server has not ended after %v", limit)
	}
	s.cmd.Wait() // its error is the exit code
	if s.stdout.Len() != 0 {
		s.t.Errorf("standard output: got %q, want nothing", s.stdout.String())
	}
	return s.cmd.ProcessState.ExitCode(), log
}

func TestServe_FinishesRunningCalls(t *testing.T) {
	s := startServer(t, t.TempDir())
	c := s.connect()
	if out, err := python(t.Context(), c, "a", "print('up')"); err != nil || !strings.Contains(out, "up") {
		t.Fatalf("got %q, %v", out, err)
	}
	type answer struct {
		out string
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		out, err := python(t.Context(), c, "a", "import time; time.sleep(2); print('done')")
		answers <- answer{out, err}
	}()
	s.awaitCalls(1)
	s.cmd.Process.Signal(syscall.SIGTERM)
	if a := <-answers; a.err != nil || !strings.Contains(a.out, "done") {
		t.Errorf("the running call: got %q, %v", a.out, a.err)
	}
	if code, log := s.wait(20 * time.Second); code != 0 {
		t.Errorf("got exit code %d\n%s", code, log)
	}
}

func TestServe_SecondSignalEndsAtOnce(t *testing.T) {
	s := startServer(t, t.TempDir())
	c := s.connect()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		python(ctx, c, "a", "import time; time.sleep(60)") // cut off
	}()
	s.awaitCalls(1)
	s.cmd.Process.Signal(syscall.SIGINT)
	time.Sleep(repeatDelay + 300*time.Millisecond)
	s.cmd.Process.Signal(syscall.SIGINT)
	if code, log := s.wait(5 * time.Second); code != ExitInterrupted {
		t.Errorf("got exit code %d, want %d\n%s", code, ExitInterrupted, log)
	}
	cancel()
	<-ended
}

// A signal to the process group reaches the server twice and counts once.
func TestServe_SignalToProcessGroup(t *testing.T) {
	state := t.TempDir()
	s := launch(t, endpoint, func(cmd *exec.Cmd) { cmd.SysProcAttr.Setpgid = true }, "glovebox", "serve", "--port", "0", "--state-dir", state)
	if out, err := python(t.Context(), s.connect(), "a", "x = 6 * 7"); err != nil {
		t.Fatalf("got %q, %v", out, err)
	}
	if err := syscall.Kill(-s.cmd.Process.Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, log := s.wait(60 * time.Second); code != 0 {
		t.Errorf("got exit code %d, want 0\n%s", code, log)
	}
	if out, err := python(t.Context(), startServer(t, state).connect(), "a", "print(x)"); err != nil || !strings.HasPrefix(out, "42\n") || !strings.Contains(out, "are kept") {
		t.Errorf("after the next start: got %q, %v", out, err)
	}
}

// Two servers share a state directory. The next start cleans up after a killed one, whose
// end does not affect the other.
func TestServe_SharedStateDirectory(t *testing.T) {
	state := t.TempDir()
	first, second := startServer(t, state), startServer(t, state)
	a, b := first.connect(), second.connect()
	for _, c := range []struct {
		session *mcp.ClientSession
		id      string
	}{{a, "of-first"}, {b, "same-id"}} {
		if out, err := python(t.Context(), c.session, c.id, "x = 6 * 7; print(x)"); err != nil || !strings.Contains(out, "42") {
			t.Fatalf("got %q, %v", out, err)
		}
	}
	if out, _ := python(t.Context(), a, "same-id", "print(x)"); !strings.Contains(out, "another Glovebox server") {
		t.Errorf("the id of the other server's box: got %q", out)
	}
	first.cmd.Process.Kill()
	first.cmd.Wait()
	third := startServer(t, state)
	if out, err := python(t.Context(), b, "same-id", "print(x)"); err != nil || !strings.Contains(out, "42") {
		t.Errorf("the other server: got %q, %v", out, err)
	}
	if _, err := python(t.Context(), third.connect(), "same-id", "print(x)"); err != nil {
		t.Error(err)
	}
	for _, s := range []*serverProcess{second, third} {
		s.cmd.Process.Signal(syscall.SIGTERM)
		if code, log := s.wait(20 * time.Second); code != 0 {
			t.Errorf("got exit code %d\n%s", code, log)
		}
	}
	// The files of one process are gone, and the shared ones are there.
	left, err := filepath.Glob(filepath.Join(state, "gvisor", "*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left in the state directory: %v, %v", left, err)
	}
}
