//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway/gatewaytest"
	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/internal/server/auth"
)

// A bridge is glovebox mcp serve with a configuration of one server, a, of a protocol
// era. The server notes what it receives.
type bridge struct {
	notes string
	env   []string
	args  []string
}

func newBridge(t *testing.T, era string) *bridge {
	t.Helper()
	dir := t.TempDir()
	b := &bridge{notes: filepath.Join(dir, "notes"), env: append(os.Environ(), "GLOVEBOX_STATE_DIR="+dir)}
	file := filepath.Join(dir, "mcp.json")
	text := fmt.Sprintf(`{"mcpServers": {"a": {"command": "asker", "env": {"ASKER_NOTES": %q}}}}`, b.notes)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b.args = []string{"glovebox", "mcp", "serve", "--config", file, "--trust", "--era", era}
	return b
}

// listen starts the bridge over HTTP.
func (b *bridge) listen(t *testing.T, args ...string) *serverProcess {
	t.Helper()
	return launch(t, endpoint, func(cmd *exec.Cmd) { cmd.Env = b.env }, slices.Concat(b.args, []string{"--listen", "127.0.0.1:0"}, args)...)
}

// stdio is a transport to a program that serves it.
func (b *bridge) stdio(t *testing.T) mcp.Transport {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &mcp.CommandTransport{Command: &exec.Cmd{Path: exe, Args: b.args, Env: b.env}}
}

func (b *bridge) noted(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(b.notes)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(text)
}

// until waits until f returns true.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	polltest.Until(t, time.Minute, what, f)
}

// Row D5: requests and notifications that a server sends during a call reach the client
// that made the call, over both transports and in all combinations of protocol eras.
func TestD5_Bridge_ForwardsRequests(t *testing.T) {
	for _, era := range []string{"legacy", "modern"} {
		for _, version := range []string{"2025-06-18", "2025-11-25", "2026-07-28"} {
			for _, over := range []string{"stdio", "http"} {
				t.Run(fmt.Sprintf("a %s server and a client of %s over %s", era, version, over), func(t *testing.T) {
					t.Parallel()
					b := newBridge(t, era)
					var transport mcp.Transport
					if over == "stdio" {
						transport = b.stdio(t)
					} else {
						transport = &mcp.StreamableClientTransport{Endpoint: b.listen(t).endpoint}
					}
					p := gatewaytest.Join(t, transport, "ann", version, false)
					questions := map[string]string{"form": "accept ann", "page": "accept <nil>", "sample": "said by ann", "roots": "file:///home/ann"}
					if over == "http" && era == "legacy" {
						delete(questions, "roots") // one list for the connection that clients share
						if _, err := p.Ask(t.Context(), "a__ask", gatewaytest.Question{What: "roots"}); err == nil || !strings.Contains(err.Error(), "set its roots in the configuration") {
							t.Errorf("roots: got %v", err)
						}
					}
					for what, want := range questions {
						if got, err := p.Ask(t.Context(), "a__ask", gatewaytest.Question{What: what, Rounds: 2}); err != nil || got != want+" "+want {
							t.Errorf("%s: got %q, %v, want %q twice", what, got, err, want)
						}
					}

					p.Forget()
					ctx, cancel := context.WithCancel(t.Context())
					params := &mcp.CallToolParams{Name: "a__wait"}
					params.SetProgressToken("mine")
					done := make(chan error, 1)
					go func() { _, err := p.CallTool(ctx, params); done <- err }()
					until(t, "the caller hears of progress", func() bool { return slices.Contains(p.All(), "progress: mine here") })
					cancel()
					if err := <-done; err == nil {
						t.Error("a cancelled call: no error")
					}
					until(t, "the server hears of the cancel", func() bool { return strings.Contains(b.noted(t), "cancelled") })

					// It dies in the middle of a call, and is there for the next.
					if res, err := p.CallTool(t.Context(), &mcp.CallToolParams{Name: "a__crash"}); err == nil && !res.IsError {
						t.Errorf("the server dies in a call: got %+v", res.Content)
					}
					if got, err := p.Ask(t.Context(), "a__ask", gatewaytest.Question{What: "form"}); err != nil || got != "accept ann" {
						t.Errorf("after its death: got %q, %v", got, err)
					}
					// It changes its tools, and the gateway does.
					if _, err := p.CallTool(t.Context(), &mcp.CallToolParams{Name: "a__learn"}); err != nil {
						t.Error(err)
					}
					until(t, "the new tool is there", func() bool {
						res, err := p.CallTool(t.Context(), &mcp.CallToolParams{Name: "a__new"})
						return err == nil && !res.IsError
					})
				})
			}
		}
	}
}

// The bridge sends a server's request only to the client whose call caused it.
func TestD5_Bridge_RequestsReachOnlyTheirCaller(t *testing.T) {
	for _, era := range []string{"legacy", "modern"} {
		b := newBridge(t, era)
		s := b.listen(t)
		people := []*gatewaytest.Person{
			gatewaytest.Join(t, &mcp.StreamableClientTransport{Endpoint: s.endpoint}, "ann", "2025-11-25", false),
			gatewaytest.Join(t, &mcp.StreamableClientTransport{Endpoint: s.endpoint}, "bob", "2026-07-28", false),
		}
		type result struct {
			name, text string
			err        error
		}
		results := make(chan result)
		for _, p := range people {
			go func() {
				text, err := p.Ask(t.Context(), "a__ask", gatewaytest.Question{What: "form", Wait: 2})
				results <- result{p.Name, text, err}
			}()
		}
		for range people {
			r := <-results
			if r.err == nil && r.text != "accept "+r.name || era == "modern" && r.err != nil {
				t.Errorf("a %s server: %s got %q, %v", era, r.name, r.text, r.err)
			}
		}
		for _, p := range people {
			if text, err := p.Ask(t.Context(), "a__ask", gatewaytest.Question{What: "form"}); text != "accept "+p.Name {
				t.Errorf("a %s server: %s got %q, %v", era, p.Name, text, err)
			}
		}
	}
}

// Row C7, C8: the bridge has the same HTTP checks as our own server.
func TestD5_Bridge_HTTPChecks(t *testing.T) {
	b := newBridge(t, "auto")
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0"} {
		code, _, stderr := run(slices.Concat(b.args[1:], []string{"--listen", address})...)
		if code != 2 || !strings.Contains(stderr, "anyone who can reach it could use your servers, with your secrets") || !strings.Contains(stderr, "hint: require tokens (--tokens-file") {
			t.Errorf("listen on %s: exit code %d, want 2 and a hint; %s", address, code, stderr)
		}
	}
	tokens := filepath.Join(t.TempDir(), "tokens.toml")
	secret, token, err := auth.NewToken("ann", time.Time{}, auth.Scopes{auth.Use})
	if err != nil {
		t.Fatal(err)
	}
	if err := auth.AddToken(tokens, &token); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := run(slices.Concat(b.args[1:], []string{"--listen", "0.0.0.0:0", "--tokens-file", tokens})...); code == 0 ||
		!strings.Contains(stderr, "clear text") {
		t.Errorf("tokens without TLS: exit code %d, %s", code, stderr)
	}
	open, guarded := b.listen(t), b.listen(t, "--tokens-file", tokens)
	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	for _, c := range []struct {
		name   string
		at     *serverProcess
		change func(*http.Request)
		want   int
	}{
		{"this machine", open, func(*http.Request) {}, http.StatusOK},
		{"a page elsewhere", open, func(r *http.Request) { r.Header.Set("Origin", "https://elsewhere.example") }, http.StatusForbidden},
		{"another host's name", open, func(r *http.Request) { r.Host = "elsewhere.example" }, http.StatusForbidden},
		{"no token", guarded, func(*http.Request) {}, http.StatusUnauthorized},
		{"a token", guarded, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+secret) }, http.StatusOK},
		{"another token", guarded, func(r *http.Request) { r.Header.Set("Authorization", "Bearer x"+secret) }, http.StatusUnauthorized},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.at.endpoint, strings.NewReader(list))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		c.change(r)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != c.want {
			t.Errorf("%s: got %s %s, %v, want %d", c.name, res.Status, body, err, c.want)
		}
	}
}
