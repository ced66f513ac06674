//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/bench/proc"
)

const (
	// startLimit bounds a server's start, which takes some seconds if it builds a template
	// first.
	startLimit = 2 * time.Minute
	// stopLimit bounds a graceful stop that hibernates a hundred contexts, two at a time.
	stopLimit = 2 * time.Minute
	// callLimit bounds a call. None should take a tenth of it.
	callLimit = time.Minute
)

// server is a running HTTP server of the binary, with a client.
type server struct {
	cmd     *exec.Cmd
	url     string
	session *mcp.ClientSession
	start   float64 // milliseconds until it told its endpoint
	tools   map[string]bool
	log     *tail
	ended   chan struct{} // closed when it has ended, with exit set
	exit    error
}

var endpoint = regexp.MustCompile(`http://127\.0\.0\.1:\d+/mcp`)

// environment is that of this program without settings of Glovebox, and with the
// given ones, each "NAME=value". state names the server's directory; servers with
// the same name follow each other in it.
func (b *bench) environment(state string, settings ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(s string) bool {
		return strings.HasPrefix(s, "GLOVEBOX_") || strings.HasPrefix(s, "MSB_") || strings.HasPrefix(s, "MCP_")
	})
	env = append(env, "GLOVEBOX_STATE_DIR="+filepath.Join(b.dir, state), "GLOVEBOX_PYTHON="+b.python, "MSB_MAX_SESSIONS=100", "GLOVEBOX_TOOLSETS=all")
	return append(env, settings...)
}

// serve starts a server, which dies with this program.
func (b *bench) serve(ctx context.Context, state string, settings ...string) (*server, error) {
	cmd := exec.Command(b.binary, "serve", "--port", "0")
	cmd.Env = b.environment(state, settings...)
	// Its own process group: a Ctrl-C reaches only the benchmark, which stops its servers
	// in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{cmd: cmd, log: &tail{}, ended: make(chan struct{})}
	ready := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(stderr)
		told := false
		for lines.Scan() {
			s.log.add(lines.Text())
			if url := endpoint.FindString(lines.Text()); url != "" && !told {
				told = true
				ready <- url
			}
		}
		s.exit = cmd.Wait()
		close(s.ended)
	}()
	limit, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("no endpoint after %v", startLimit))
	defer cancel()
	select {
	case s.url = <-ready:
		s.start = ms(time.Since(begun))
	case <-s.ended:
		return nil, fmt.Errorf("start glovebox serve: it ended (%v): %s", s.exit, s.log)
	case <-limit.Done():
		s.kill()
		return nil, fmt.Errorf("start glovebox serve: %w: %s", context.Cause(limit), s.log)
	}
	if s.session, err = s.connect(ctx); err != nil {
		s.kill()
		return nil, err
	}
	list, err := s.session.ListTools(limit, nil)
	if err != nil {
		s.kill()
		return nil, fmt.Errorf("list the tools: %w", err)
	}
	s.tools = make(map[string]bool)
	for _, t := range list.Tools {
		s.tools[t.Name] = true
	}
	return s, nil
}

func (s *server) connect(ctx context.Context) (*mcp.ClientSession, error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "glovebox-bench", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: s.url}, nil)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", s.url, err)
	}
	return session, nil
}

// stop ends the server gracefully and returns the duration in milliseconds. It ignores
// ctx, because a server must always be stopped.
func (s *server) stop() (float64, error) {
	var tree []proc.Process
	select {
	case <-s.ended: // its number may be another's by now
	default:
		pids, err := proc.Tree(s.cmd.Process.Pid)
		if err != nil {
			s.kill()
			return 0, err
		}
		tree = proc.Identify(pids)
	}
	s.session.Close()
	begun := time.Now()
	s.cmd.Process.Signal(syscall.SIGTERM) // fails only if it has ended
	select {
	case <-s.ended:
		took := ms(time.Since(begun))
		var err error
		if s.exit != nil {
			err = fmt.Errorf("stop glovebox serve: %w: %s", s.exit, s.log)
		}
		return took, errors.Join(err, reap(tree))
	case <-time.After(stopLimit):
		s.kill()
		return 0, errors.Join(fmt.Errorf("stop glovebox serve: still there after %v: %s", stopLimit, s.log), reap(tree))
	}
}

func (s *server) kill() {
	if s.session != nil {
		s.session.Close()
	}
	select {
	case <-s.ended:
	default:
		syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
		<-s.ended
	}
}

// reap waits until all processes of a server have ended and kills those that remain, which
// would distort the figures of the next server. It checks their identity, because process
// ids are reused.
func reap(tree []proc.Process) error {
	for range 50 {
		tree = slices.DeleteFunc(tree, func(p proc.Process) bool { return !p.Alive() })
		if len(tree) == 0 {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, p := range tree {
		if p.Alive() {
			syscall.Kill(p.PID, syscall.SIGKILL)
		}
	}
	return fmt.Errorf("%d processes of a server were left after its end", len(tree))
}

// call calls a tool and returns the milliseconds and its structured content.
func (s *server) call(ctx context.Context, tool string, args map[string]any) (float64, map[string]any, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	begun := time.Now()
	r, err := s.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	took := ms(time.Since(begun))
	if err != nil {
		select {
		case <-s.ended:
			return took, nil, fmt.Errorf("call %s: the server has ended (%v): %s", tool, s.exit, s.log)
		default:
			return took, nil, fmt.Errorf("call %s: %w", tool, err)
		}
	}
	if r.IsError {
		text, _ := json.Marshal(r.Content)
		return took, nil, fmt.Errorf("call %s: %s", tool, text)
	}
	content, _ := r.StructuredContent.(map[string]any)
	if source, ok := r.Meta["glovebox/source"]; ok {
		content["source"] = source // where older binaries have it
	}
	return took, content, nil
}

// create creates a context and returns its id and its origin: "warm", "cold", "boot", or
// "" from a binary that does not report it.
func (s *server) create(ctx context.Context, name string) (took float64, id, source string, err error) {
	took, content, err := s.call(ctx, "create_context", map[string]any{"name": name})
	if err != nil {
		return 0, "", "", err
	}
	id, _ = content["context_id"].(string)
	source, _ = content["source"].(string)
	return took, id, source, nil
}

// run runs code in a context and returns the duration in milliseconds. It returns an error
// unless the output is want.
func (s *server) run(ctx context.Context, id, code, want string) (float64, error) {
	took, content, err := s.call(ctx, "run_code", map[string]any{"context_id": id, "code": code})
	if err != nil {
		return 0, err
	}
	if got, _ := content["stdout"].(string); strings.TrimSpace(got) != want || content["success"] != true {
		answer, _ := json.Marshal(content)
		return 0, fmt.Errorf("run %q: got %q, want %q: %.500s", code, got, want, answer)
	}
	return took, nil
}

// eval runs code in a context and returns its standard output.
func (s *server) eval(ctx context.Context, id, code string) (string, error) {
	_, content, err := s.call(ctx, "run_code", map[string]any{"context_id": id, "code": code})
	if err != nil {
		return "", err
	}
	if content["success"] != true {
		answer, _ := json.Marshal(content)
		return "", fmt.Errorf("run %q: %.500s", code, answer)
	}
	out, _ := content["stdout"].(string)
	return strings.TrimSpace(out), nil
}

// end stops contexts.
func (s *server) end(ctx context.Context, ids ...string) error {
	for _, id := range ids {
		if _, _, err := s.call(ctx, "stop_context", map[string]any{"context_id": id}); err != nil {
			return err
		}
	}
	return nil
}

// statuses maps the ids of contexts to their status.
func (s *server) statuses(ctx context.Context) (map[string]string, error) {
	_, content, err := s.call(ctx, "list_contexts", map[string]any{})
	if err != nil {
		return nil, err
	}
	all := make(map[string]string)
	items, _ := content["contexts"].([]any)
	for _, item := range items {
		fields, _ := item.(map[string]any)
		id, _ := fields["context_id"].(string)
		all[id], _ = fields["status"].(string)
	}
	return all, nil
}

// tail keeps the last lines of a log, for messages.
type tail struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

func (t *tail) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, line)
	if len(t.lines) > 8 {
		t.lines = t.lines[1:]
	}
}

// Write expects whole lines, as programs mostly write them.
func (t *tail) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		t.add(strings.TrimSuffix(line, "\n"))
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.lines, " | ")
}
