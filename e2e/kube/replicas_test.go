package kube_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

const replicasNamespace = "replicas"

// replica is a server process that shares its boxes with others.
type replica struct {
	address string
	cmd     *exec.Cmd
	ended   chan struct{}
}

func (r *replica) url() string { return "http://" + r.address + "/mcp" }

// signal signals the server and waits for its end.
func (r *replica) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.ended:
	case <-time.After(2 * time.Minute):
		t.Fatalf("the server does not end after %v", s)
	}
}

// serve starts a server and waits until it is ready.
func (p *program) serve(t *testing.T) *replica {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	ln.Close()
	_, port, _ := net.SplitHostPort(address)
	r := &replica{address: address, ended: make(chan struct{})}
	r.cmd = exec.Command(p.path, "serve", "--port", port, "--kube-peer-address", address, "--toolset", "all")
	r.cmd.Env = append(slices.Clone(p.env), "GLOVEBOX_KUBE_NAMESPACE="+replicasNamespace, "GLOVEBOX_STATE_DIR="+t.TempDir())
	r.cmd.Stderr = os.Stderr
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		r.cmd.Wait()
		close(r.ended)
	}()
	t.Cleanup(func() {
		r.cmd.Process.Kill()
		<-r.ended
	})
	return r
}

func (r *replica) awaitReady(t *testing.T) {
	t.Helper()
	if !polltest.Soon(2*time.Minute, func() bool {
		res, err := http.Get("http://" + r.address + "/ready")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	}) {
		t.Fatalf("the server at %s is not ready", r.address)
	}
}

// balancer is one address for several servers. It sends each request to the next that accepts
// connections, whatever the request is about.
type balancer struct {
	replicas []*replica
	next     atomic.Int64
}

func (b *balancer) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	var err error
	if r.Body != nil {
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	for range b.replicas {
		to := b.replicas[int(b.next.Add(1))%len(b.replicas)]
		var conn net.Conn
		if conn, err = net.DialTimeout("tcp", to.address, time.Second); err != nil {
			continue
		}
		conn.Close()
		out := r.Clone(r.Context())
		out.URL.Host = to.address
		if r.Body != nil {
			out.Body = io.NopCloser(bytes.NewReader(body))
		}
		return balanced.RoundTrip(out)
	}
	return nil, err
}

// balanced has a connection for each request: the balancer decides anew for each.
var balanced = &http.Transport{DisableKeepAlives: true}

func balance(t *testing.T, replicas []*replica) string {
	t.Helper()
	any, err := url.Parse("http://" + replicas[0].address)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(&httputil.ReverseProxy{
		Transport: &balancer{replicas: replicas}, FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(any) },
	})
	t.Cleanup(front.Close)
	return front.URL + "/mcp"
}

// connect begins a session of the protocol, which the newest revision does not have.
func connect(ctx context.Context, t *testing.T, endpoint string) *mcp.ClientSession {
	t.Helper()
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).
		Connect(ctx, &mcp.StreamableClientTransport{Endpoint: endpoint}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// stateless calls a tool as a client of the revision without sessions does.
func stateless(ctx context.Context, endpoint, tool string, args map[string]any) (a answer, err error) {
	body, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": 1, "method": "tools/call",
		"params": map[string]any{"name": tool, "arguments": args, "_meta": map[string]any{
			"io.modelcontextprotocol/protocolVersion":    "2026-07-28",
			"io.modelcontextprotocol/clientInfo":         map[string]any{"name": "test", "version": "1"},
			"io.modelcontextprotocol/clientCapabilities": map[string]any{},
		}},
	})
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	for k, v := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool,
	} {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return a, err
	}
	for line := range strings.Lines(string(text)) {
		if data, ok := strings.CutPrefix(line, "data: "); ok && strings.Contains(data, `"id"`) {
			text = []byte(data)
		}
	}
	var reply struct {
		Result *struct {
			IsError    bool   `json:"isError"`
			Structured answer `json:"structuredContent"`
		} `json:"result"`
		Error *struct{ Message string } `json:"error"`
	}
	switch err := json.Unmarshal(text, &reply); {
	case err != nil:
		return a, fmt.Errorf("%s %q: %w", res.Status, text, err)
	case reply.Error != nil:
		return a, fmt.Errorf("%s: %s", res.Status, reply.Error.Message)
	case reply.Result == nil || reply.Result.IsError:
		return a, fmt.Errorf("%s %s", res.Status, text)
	}
	return reply.Result.Structured, nil
}

// run runs code in a box without a session of the protocol, and returns what it printed.
func run(ctx context.Context, t *testing.T, endpoint, box, code string) string {
	t.Helper()
	a, err := stateless(ctx, endpoint, "execute_code", map[string]any{"session_id": box, "code": code})
	if err != nil {
		t.Fatalf("%s in %s: %v", code, box, err)
	}
	if !a.Success || a.SessionID != box || len(a.Notes) > 0 {
		t.Errorf("%s in %s answers %+v", code, box, a)
	}
	return strings.TrimSpace(a.Stdout)
}

// holder returns which of the servers has a box, as the cluster has it.
func (p *program) holder(t *testing.T, replicas []*replica, box string) *replica {
	t.Helper()
	var lease string
	for line := range strings.Lines(p.control(t, "get", "pods", "-n", replicasNamespace, "-o",
		`jsonpath={range .items[*]}{.metadata.labels.glovebox\.dev/owner} {.metadata.annotations.glovebox\.dev/note}{"\n"}{end}`)) {
		if strings.Contains(line, strconv.Quote(box)) {
			lease, _, _ = strings.Cut(line, " ")
		}
	}
	address := p.control(t, "get", "lease", lease, "-n", replicasNamespace, "-o", `jsonpath={.metadata.annotations.glovebox\.dev/address}`)
	for _, r := range replicas {
		if r.address == address {
			return r
		}
	}
	t.Fatalf("box %s is of the Lease %q with the address %q", box, lease, address)
	return nil
}

// TestReplicas_OneIsKilled has three servers behind one address serve clients while one of
// them is killed in the middle of a call, and another one is stopped.
func TestReplicas_OneIsKilled(t *testing.T) {
	p := onCluster(t)
	p.namespaceOf(t, replicasNamespace)
	ctx := within(t)
	var replicas []*replica
	for range 3 { // one after another: each makes a box at its first start, and the node has two processors
		r := p.serve(t)
		r.awaitReady(t)
		replicas = append(replicas, r)
	}
	front := balance(t, replicas)

	// A stock client with a session of the protocol, each of whose requests goes to the next
	// server.
	c := connect(ctx, t, front)
	first := call(ctx, t, c, "execute_code", map[string]any{"code": "x = 0\nopen('kept', 'w').write('file')"}).SessionID
	for range 6 {
		if a := call(ctx, t, c, "execute_code", map[string]any{"code": "x += 1", "session_id": first}); !a.Success || len(a.Notes) > 0 {
			t.Fatalf("a call in the session answers %+v", a)
		}
	}
	victim := p.holder(t, replicas, first)
	var others []*replica
	for _, r := range replicas {
		if r != victim {
			others = append(others, r)
		}
	}

	// Each server serves the box, with a session of its own and without.
	for i, r := range replicas {
		if got, want := run(ctx, t, r.url(), first, "x += 1; x"), strconv.Itoa(7+2*i); got != want {
			t.Errorf("without a session, server %d prints %q, want %q", i, got, want)
		}
		elsewhere := connect(ctx, t, r.url())
		if a := call(ctx, t, elsewhere, "execute_code", map[string]any{"code": "x += 1; x", "session_id": first}); strings.TrimSpace(a.Stdout) != strconv.Itoa(8+2*i) {
			t.Errorf("with a session, server %d answers %+v", i, a)
		}
	}
	if file := call(ctx, t, connect(ctx, t, others[0].url()), "download_file", map[string]any{"path": "kept", "session_id": first}); file.Content != "file" {
		t.Errorf("another server reads %+v", file)
	}

	// A box of another server, with an id that the client chooses.
	const second = "of-another"
	if a, err := stateless(ctx, others[0].url(), "execute_code", map[string]any{"session_id": second, "code": "y = 5"}); err != nil || !a.Success {
		t.Fatalf("a new box answers %+v, %v", a, err)
	}
	if p.holder(t, replicas, second) != others[0] {
		t.Error("the second box is not of the server that was asked for it")
	}

	// The server that has the box is killed in the middle of calls: one that came to it, and one
	// that another server has forwarded.
	var calls sync.WaitGroup
	failed := make([]error, 2)
	for i, endpoint := range []string{victim.url(), others[1].url()} {
		calls.Go(func() {
			_, failed[i] = stateless(ctx, endpoint, "execute_command", map[string]any{"session_id": first, "command": fmt.Sprintf("touch begun-%d; sleep 600", i)})
		})
	}
	if !polltest.Soon(time.Minute, func() bool {
		a, err := stateless(ctx, others[0].url(), "execute_command", map[string]any{"session_id": first, "command": "ls begun-0 begun-1"})
		return err == nil && a.Success
	}) {
		t.Fatal("the calls do not begin")
	}
	killed := time.Now()
	victim.signal(t, syscall.SIGKILL)
	calls.Wait()
	for i, err := range failed {
		if err == nil {
			t.Errorf("call %d succeeds, and its server was killed", i)
		}
		t.Logf("call %d under way: %v", i, err)
	}
	if d := time.Since(killed); d > 20*time.Second {
		t.Errorf("the calls under way fail after %v", d)
	}

	// Everything else goes on at once.
	if got := run(ctx, t, front, second, "y"); got != "5" {
		t.Errorf("the box of another server has y = %q", got)
	}
	if d := time.Since(killed); d > 20*time.Second {
		t.Errorf("a call into the box of a living server waits for one that was killed: %v", d)
	}

	// The session of the protocol is gone with its server, as the protocol says; the client begins
	// another one, and the box has its variables. Both servers are asked at once.
	if _, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "execute_code", Arguments: map[string]any{"code": "x", "session_id": first}}); err == nil {
		t.Error("the session of a server that was killed goes on")
	} else {
		t.Logf("the session of the protocol: %v, %v after the kill", err, time.Since(killed).Round(time.Second))
	}
	var both sync.WaitGroup
	for _, r := range others {
		both.Go(func() {
			if a, err := stateless(ctx, r.url(), "execute_code", map[string]any{"session_id": first, "code": "x"}); err != nil || strings.TrimSpace(a.Stdout) != "12" || len(a.Notes) > 0 {
				t.Errorf("the box of the server that was killed answers %+v, %v", a, err)
			}
		})
	}
	both.Wait()
	c = connect(ctx, t, front)
	a := call(ctx, t, c, "execute_code", map[string]any{"code": "print(x, open('kept').read())", "session_id": first})
	if strings.TrimSpace(a.Stdout) != "12 file" || len(a.Notes) > 0 {
		t.Errorf("after the kill, the box answers %+v; want its variables and files", a)
	}
	t.Logf("the box of the server that was killed answers %v after the kill", time.Since(killed).Round(time.Second))

	// A server that is stopped leaves its boxes to the others at once.
	others[0].signal(t, syscall.SIGTERM)
	stopped := time.Now()
	for name, want := range map[string]string{first: "12", second: "5"} {
		code := map[string]string{first: "x", second: "y"}[name]
		if got := run(ctx, t, front, name, code); got != want {
			t.Errorf("after the stop, box %s has %q, want %q", name, got, want)
		}
	}
	t.Logf("all boxes of the server that was stopped answer %v after its end", time.Since(stopped).Round(time.Millisecond))
	for _, name := range []string{first, second} {
		if r := p.holder(t, replicas, name); r != others[1] {
			t.Errorf("box %s is not of the server that is left", name)
		}
	}
	if pods := strings.Fields(p.control(t, "get", "pods", "-n", replicasNamespace, "-o", "name")); len(pods) != 2 {
		t.Errorf("the Pods are %q, want those of two boxes", pods)
	}
}
