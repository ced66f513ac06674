package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/internal/proctest"
)

// shared is a state directory whose templates are built once. Tests use copies of it.
var shared = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "glovebox-e2e-")
	if err != nil {
		return "", err
	}
	path := os.Getenv("GLOVEBOX_BINARY")
	if path == "" {
		path = "../bin/glovebox"
	}
	cmd := exec.Command(path, "template", "build")
	cmd.Env = append(os.Environ(), "GLOVEBOX_STATE_DIR="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("build templates: %w: %s", err, out)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	os.Setenv("GLOVEBOX_TOOLSETS", "all")           // for the servers; it cannot fail for such a name
	os.Setenv("GLOVEBOX_FINISH_TEMPLATES", "false") // a process that outlives its test would miss its state
	code := proctest.Main(m)
	if dir, _ := shared(); dir != "" {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// state returns a state directory of the test's own, with templates. At the end of the
// test it waits for the processes that use it: a client may return before the server that
// it started has ended.
func state(t *testing.T) string {
	t.Helper()
	glovebox(t) // or skip
	from, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Cleanup(func() { proctest.WaitUnused(t, dir, time.Minute) })
	for _, part := range []string{"templates", "images"} {
		if err := os.CopyFS(filepath.Join(dir, part), os.DirFS(filepath.Join(from, part))); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

var endpoint = regexp.MustCompile(`http://127\.0\.0\.1:\d+/mcp`)

// process is a server that a test starts, stops and kills.
type process struct {
	cmd *exec.Cmd
	url string

	found chan string   // gets its endpoint
	done  chan struct{} // closed when its log has ended
	mu    sync.Mutex
	log   bytes.Buffer // guarded by mu
}

// launch starts the HTTP server on a state directory, without a pool unless env sets one,
// and returns when it listens. The end of the test kills it.
func launch(t *testing.T, dir string, env ...string) *process {
	t.Helper()
	p := begin(t, dir, env...)
	select {
	case p.url = <-p.found:
	case <-p.done:
		t.Fatalf("the server ended before it printed its endpoint:\n%s", p.text())
	case <-time.After(time.Minute):
		t.Fatal("the server did not tell its endpoint within a minute")
	}
	return p
}

// begin is launch without waiting for the endpoint.
func begin(t *testing.T, dir string, env ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(glovebox(t), "serve", "--port", "0"), found: make(chan string, 1), done: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), "GLOVEBOX_STATE_DIR="+dir, "GLOVEBOX_POOL_SIZE=0"), env...)
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			p.mu.Lock()
			p.log.WriteString(lines.Text() + "\n")
			p.mu.Unlock()
			if url := endpoint.FindString(lines.Text()); url != "" {
				select {
				case p.found <- url:
				default:
				}
			}
		}
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.done
		p.cmd.Wait()
		if t.Failed() {
			t.Logf("server %d:\n%s", p.cmd.Process.Pid, p.text())
		}
	})
	return p
}

// text returns the log so far.
func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// stop sends SIGTERM and fails the test unless the server exits with 0.
func (p *process) stop(t *testing.T) {
	t.Helper()
	p.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.AfterFunc(2*time.Minute, func() { p.cmd.Process.Kill() })
	defer timer.Stop()
	<-p.done
	if err := p.cmd.Wait(); err != nil {
		t.Fatalf("stop the server: %v\n%s", err, p.text())
	}
}

// kill sends SIGKILL and waits.
func (p *process) kill(t *testing.T) {
	t.Helper()
	p.cmd.Process.Kill()
	<-p.done
	p.cmd.Wait()
}

// answer is the result of a tool.
type answer struct {
	IsError           bool
	StructuredContent map[string]any
	Content           []content
	Meta              map[string]any `json:"_meta"`
}

// content is a part of such a result.
type content struct {
	Type, Text, MIMEType string
	Data                 []byte
}

func (a *answer) text() string {
	var texts []string
	for _, c := range a.Content {
		texts = append(texts, c.Text)
	}
	return strings.Join(texts, "\n")
}

// str returns a string of the structured content, or "".
func (a *answer) str(name string) string {
	s, _ := a.StructuredContent[name].(string)
	return s
}

// try calls a tool with a bare POST. It returns a JSON-RPC error as a failed result.
func (p *process) try(tool string, args map[string]any) (*answer, error) {
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": map[string]any{"name": tool, "arguments": args}})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequest("POST", p.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	client := http.Client{Timeout: 3 * time.Minute}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(data) {
		if rest, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			data = rest
		}
	}
	var msg struct {
		Result *answer
		Error  *struct{ Message string }
	}
	if err := json.Unmarshal(data, &msg); err != nil {
		return nil, fmt.Errorf("%w: %s", err, data)
	}
	if msg.Error != nil {
		return &answer{IsError: true, Content: []content{{Type: "text", Text: msg.Error.Message}}}, nil
	}
	return msg.Result, nil
}

// call is try for a call that must succeed.
func (p *process) call(t *testing.T, tool string, args map[string]any) *answer {
	t.Helper()
	a, err := p.try(tool, args)
	if err != nil {
		t.Fatalf("call %s: %v", tool, err)
	}
	if a.IsError {
		t.Fatalf("call %s %v: %s", tool, args, a.text())
	}
	return a
}

// run runs code in a context and returns its standard output.
func (p *process) run(t *testing.T, id, code string) string {
	t.Helper()
	a := p.call(t, "run_code", map[string]any{"context_id": id, "code": code})
	if a.StructuredContent["success"] != true {
		t.Fatalf("run %q: %s", code, a.text())
	}
	return strings.TrimSuffix(a.str("stdout"), "\n")
}

// create creates a context and returns its id.
func (p *process) create(t *testing.T, name string) string {
	t.Helper()
	return p.call(t, "create_context", map[string]any{"name": name}).str("context_id")
}

// status returns the listed status of a context, or "".
func (p *process) status(t *testing.T, id string) string {
	t.Helper()
	list, _ := p.call(t, "list_contexts", map[string]any{}).StructuredContent["contexts"].([]any)
	for _, item := range list {
		if c, ok := item.(map[string]any); ok && c["context_id"] == id {
			return fmt.Sprint(c["status"])
		}
	}
	return ""
}

// until polls for up to a minute.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	polltest.Until(t, time.Minute, what, ok)
}
