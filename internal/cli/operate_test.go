//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// get requests a page of the server.
func (s *serverProcess) get(path, accept string) (status int, header http.Header, body string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, strings.TrimSuffix(s.endpoint, "/mcp")+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatalf("GET %s: %v", path, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatalf("GET %s: %v", path, err)
	}
	return res.StatusCode, res.Header, string(b)
}

// awaitReady waits until /ready reports success.
func (s *serverProcess) awaitReady() {
	s.t.Helper()
	var status int
	var body string
	ready := func() bool {
		status, _, body = s.get("/ready", "*/*")
		return status == http.StatusOK
	}
	if !polltest.Soon(3*time.Minute, ready) {
		s.t.Fatalf("not ready: %s", body)
	}
}

// The server reports its readiness, metrics and status: to load balancers, Prometheus and
// browsers.
func TestServe_ReportsStatus(t *testing.T) {
	s := startServer(t, t.TempDir(), "--pool-size", "1", "--tool-errors", "protocol")
	if status, header, body := s.get("/ready", "*/*"); status != http.StatusOK {
		if status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" || !strings.Contains(body, "health check") {
			t.Errorf("before: got %d %s", status, body)
		}
		if _, _, page := s.get("/", "text/html"); !strings.Contains(page, "<title>Glovebox – starting</title>") && !strings.Contains(page, "– ready</title>") {
			t.Errorf("before: got the page %.300s", page)
		}
	}
	if status, _, _ := s.get("/health", "*/*"); status != http.StatusOK {
		t.Errorf("health before: got %d", status)
	}
	s.awaitReady()

	c := s.connect()
	const name = "a <b>bold</b> name" // refused as a name, so as an id
	if out, err := python(t.Context(), c, "box-1", "print('up')"); err != nil || !strings.Contains(out, "up") {
		t.Fatalf("got %q, %v", out, err)
	}
	if _, err := python(t.Context(), c, name, "1"); err == nil {
		t.Error("a session with a tag as its id was made")
	}

	s.listen()
	_, _, text := s.get("/metrics", "*/*")
	for _, line := range []string{
		`glovebox_ready 1`,
		`mcp_active_sessions 1`,
		`mcp_active_streams 1`,
		`mcp_requests_total{method="tools/call",outcome="ok",tool="execute_code"} 1`,
		`mcp_errors_total{code="-32602"} 1`,
		`glovebox_boxes{flavor="small",kind="session",state="ready"} 1`,
		`glovebox_boxes_limit{kind="session"} 10`,
		`glovebox_pool_wanted{flavor="small",template="python"} 1`,
		`glovebox_oom_kills_total 0`,
		`glovebox_snapshot_disk_limit_bytes 2.147483648e+10`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("/metrics has no line %s", line)
		}
	}
	for _, re := range []string{
		`(?m)^glovebox_engine_info\{engine="gvisor",isolation="[a-z- ]+",version="[^"]+"\} 1$`,
		`(?m)^glovebox_box_start_duration_seconds_count\{outcome="ok",source="(warm|cold|boot)"\} 1$`,
		`(?m)^go_goroutines [0-9]+$`,
	} {
		if !regexp.MustCompile(re).MatchString(text) {
			t.Errorf("/metrics has nothing like %s", re)
		}
	}
	if strings.Contains(text, "bold") || strings.Contains(text, "box-1") {
		t.Error("/metrics has an id")
	}
	if t.Failed() {
		t.Log(text)
	}

	_, header, page := s.get("/", "text/html,application/xhtml+xml,*/*;q=0.8")
	for _, want := range []string{"– ready</title>", "<code>box-1</code>", "1 of 10", "gVisor", "days old", "-32602"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if header.Get("Content-Security-Policy") == "" || strings.Contains(page, "<b>bold") {
		t.Errorf("the page: %v\n%s", header, page)
	}
	_, _, body := s.get("/mcp", "application/json")
	var status map[string]any
	if err := json.Unmarshal([]byte(body), &status); err != nil || status["ready"] != true || status["sessions"] != 1.0 {
		t.Errorf("the status: %v, %s", err, body)
	}

	s.cmd.Process.Signal(syscall.SIGTERM)
	code, log := s.wait(30 * time.Second)
	if code != 0 {
		t.Errorf("got exit code %d", code)
	}
	at := 0
	for _, line := range []string{
		`level=INFO msg="glovebox starts"`,
		`level=INFO msg="engine ready" engine=gvisor`,
		`level=INFO msg="health check begins`,
		`level=INFO msg="pool begins to fill" interpreter=python`,
		`level=INFO msg="pool instance is ready"`,
		`level=INFO msg="pool is full"`,
		`level=INFO msg="health check passed`,
		`level=INFO msg="server is ready, waiting for requests" endpoint=` + s.endpoint,
		`is ready: ` + s.endpoint,
	} {
		i := strings.Index(log[at:], line)
		if i < 0 {
			t.Fatalf("the log has no %q where it should be:\n%s", line, log)
		}
		at += i
	}
}

// A stopping server finishes running calls and refuses new ones.
func TestServe_Drains(t *testing.T) {
	s := startServer(t, t.TempDir(), "--pool-size", "0")
	c := s.connect() // listens for messages as well
	if _, err := python(t.Context(), c, "a", "1"); err != nil {
		t.Fatal(err)
	}
	listener := s.listen()
	ended := make(chan string, 1)
	go func() {
		out, err := python(t.Context(), c, "a", "import time; time.sleep(6); print('done')")
		if err != nil {
			out = err.Error()
		}
		ended <- out
	}()
	s.awaitCalls(1)
	s.cmd.Process.Signal(syscall.SIGTERM)
	var status int
	var body string
	polltest.Soon(5*time.Second, func() bool {
		status, _, body = s.get("/ready", "*/*")
		return status != http.StatusOK
	})
	if status != http.StatusServiceUnavailable || !strings.Contains(body, "stopping") {
		t.Errorf("/ready while it stops: got %d %s", status, body)
	}
	if status, _, body := s.get("/health", "*/*"); status != http.StatusOK || !strings.Contains(body, "draining") {
		t.Errorf("/health while it stops: got %d %s", status, body)
	}
	res, err := http.Post(s.endpoint, "application/json", strings.NewReader(`{"jsonrpc":"2.0","id":7,"method":"tools/list"}`))
	if err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" || !strings.Contains(string(answer), `"id":7`) {
		t.Errorf("a new call: got %s %v %s", res.Status, res.Header, answer)
	}
	if out := <-ended; !strings.Contains(out, "done") {
		t.Errorf("the running call: got %q", out)
	}
	select {
	case err := <-listener:
		if err != nil {
			t.Errorf("the listener's stream did not end well: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the listener's stream did not end")
	}
	if code, log := s.wait(30 * time.Second); code != 0 {
		t.Errorf("got exit code %d\n%s", code, log)
	}
}

// A call that outlasts the deadline is interrupted, and its answer says so.
func TestServe_DrainTimeout(t *testing.T) {
	s := startServer(t, t.TempDir(), "--pool-size", "0", "--drain-timeout", "1s")
	c := s.connect()
	if _, err := python(t.Context(), c, "a", "1"); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		text string
		err  error
	}
	ended := make(chan answer, 1)
	go func() {
		text, err := python(t.Context(), c, "a", "import time; time.sleep(120)")
		ended <- answer{text, err}
	}()
	s.awaitCalls(1)
	begun := time.Now()
	s.cmd.Process.Signal(syscall.SIGTERM)
	code, log := s.wait(45 * time.Second)
	if code != 0 || !strings.Contains(log, "cancel calls that outlast the shutdown") {
		t.Errorf("got exit code %d after %v\n%s", code, time.Since(begun), log)
	}
	if a := <-ended; a.err != nil || !strings.Contains(a.text, "The server is shutting down and interrupted this call") {
		t.Errorf("the call of two minutes: got %q, %v", a.text, a.err)
	}
}

// awaitCalls waits until n calls run in boxes.
func (s *serverProcess) awaitCalls(n int) {
	s.t.Helper()
	var body string
	running := func() bool {
		_, _, body = s.get("/mcp", "application/json")
		var status struct {
			Calls  int            `json:"calls"`
			States map[string]int `json:"boxes_by_state"`
		}
		if err := json.Unmarshal([]byte(body), &status); err != nil {
			s.t.Fatal(err)
		}
		return status.Calls >= n && status.States["running"] >= 1
	}
	if !polltest.Soon(30*time.Second, running) {
		s.t.Fatalf("no call runs: %s", body)
	}
}

// listen opens a session with a stream; the channel gets the error that ended it.
func (s *serverProcess) listen() <-chan error {
	s.t.Helper()
	do := func(method, body string, header ...string) *http.Response {
		r, err := http.NewRequest(method, s.endpoint, strings.NewReader(body))
		if err != nil {
			s.t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			s.t.Fatal(err)
		}
		return res
	}
	res := do("POST", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	io.Copy(io.Discard, res.Body)
	res.Body.Close()
	id := res.Header.Get("Mcp-Session-Id")
	do("POST", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "Mcp-Session-Id", id).Body.Close()
	stream := do("GET", "", "Mcp-Session-Id", id, "Accept", "text/event-stream")
	if stream.StatusCode != http.StatusOK {
		s.t.Fatalf("open the stream: %s", stream.Status)
	}
	ended := make(chan error, 1)
	go func() {
		defer stream.Body.Close()
		_, err := io.Copy(io.Discard, stream.Body)
		ended <- err
	}()
	return ended
}

// serve offers the transports of --mode or MCP_MODE.
func TestServe_Modes(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	connect := func(cmd *exec.Cmd) (*mcp.ClientSession, error) {
		return mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	}
	program := func(ctx context.Context, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, exe, args...)
		cmd.Args[0] = "glovebox"
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		cmd.Env = append(os.Environ(), "GLOVEBOX_STATE_DIR="+t.TempDir(), "GLOVEBOX_POOL_SIZE=0")
		return cmd
	}
	t.Run("stdio", func(t *testing.T) {
		cmd := program(t.Context(), "serve", "--port", "0")
		cmd.Env = append(cmd.Env, "MCP_MODE=stdio")
		var log strings.Builder
		cmd.Stderr = &log
		c, err := connect(cmd)
		if err != nil {
			t.Fatalf("%v\n%s", err, log.String())
		}
		if out, err := python(t.Context(), c, "a", "print(6*7)"); err != nil || !strings.Contains(out, "42") {
			t.Errorf("got %q, %v", out, err)
		}
		if err := c.Close(); err != nil {
			t.Errorf("the end of the input ends it: %v\n%s", err, log.String())
		}
		if strings.Contains(log.String(), "listens") {
			t.Errorf("it listens:\n%s", log.String())
		}
	})
	t.Run("http", func(t *testing.T) {
		s := startServer(t, t.TempDir(), "--mode", "http", "--pool-size", "0")
		if out, err := python(t.Context(), s.connect(), "a", "print(6*7)"); err != nil || !strings.Contains(out, "42") {
			t.Errorf("got %q, %v", out, err)
		}
	})
	t.Run("dual", func(t *testing.T) {
		cmd := program(t.Context(), "serve", "--mode=dual", "--port", "0")
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		s := &serverProcess{t: t, cmd: cmd}
		read := s.follow(stderr, endpoint)
		// Pipes of our own: the client of the SDK would kill the server at the end of the input.
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.IOTransport{Reader: out, Writer: in}, nil)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case s.endpoint = <-read:
		case <-time.After(time.Minute):
			t.Fatal("no endpoint after a minute")
		}
		over := s.connect()
		// One server: each transport sees the boxes of the other one.
		if out, err := python(t.Context(), c, "a", "x = 6*7; print(x)"); err != nil || !strings.Contains(out, "42") {
			t.Errorf("stdio: got %q, %v", out, err)
		}
		if out, err := python(t.Context(), over, "a", "print(x + 1)"); err != nil || !strings.Contains(out, "43") {
			t.Errorf("http: got %q, %v", out, err)
		}
		c.Close()
		in.Close()
		if out, err := python(t.Context(), over, "a", "print(x + 2)"); err != nil || !strings.Contains(out, "44") {
			t.Errorf("http after the end of the input: got %q, %v", out, err)
		}
		cmd.Process.Signal(syscall.SIGTERM)
		if code, log := s.wait(30 * time.Second); code != 0 {
			t.Errorf("got exit code %d\n%s", code, log)
		}
	})
}
