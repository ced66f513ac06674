//go:build linux

package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway/gatewaytest"
	"github.com/glovebox-dev/glovebox/internal/proctest"
)

// stock returns the directory of the official reference servers that the end-to-end tests
// install.
func stock(t *testing.T) (dir string) {
	t.Helper()
	lacking := t.Skipf
	if os.Getenv("GLOVEBOX_TEST_COMPLETE") != "" {
		lacking = t.Fatalf
	}
	dir, err := filepath.Abs("../../e2e/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "@modelcontextprotocol/server-filesystem")); err != nil {
		lacking("no stock servers: run npm ci in e2e first")
	}
	for _, program := range []string{"node", "npx"} {
		if _, err := exec.LookPath(program); err != nil {
			lacking("no %s on PATH: %v", program, err)
		}
	}
	return dir
}

// Row D5, D7: the reference servers and our own, as one server for clients of both
// eras over both transports.
func TestD7_Bridge_ReferenceServers(t *testing.T) {
	modules, dir := stock(t), t.TempDir()
	// The server of boxes writes them after its client, the bridge, has ended.
	t.Cleanup(func() { proctest.WaitUnused(t, dir, time.Minute) })
	notes := filepath.Join(dir, "notes")
	if err := os.Mkdir(notes, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(notes, "today.txt"), []byte("Buy bread.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	program := func(name string) string {
		return filepath.Join(modules, "@modelcontextprotocol", name, "dist/index.js")
	}
	config, err := json.Marshal(map[string]any{"mcpServers": map[string]any{
		"everything": map[string]any{"command": "node", "args": []string{program("server-everything")}},
		"files":      map[string]any{"command": "node", "args": []string{program("server-filesystem"), notes}},
		"box": map[string]any{"command": "glovebox", "args": []string{"stdio", "--pool-size", "0"},
			"env": map[string]string{"GLOVEBOX_STATE_DIR": filepath.Join(dir, "boxes")}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "mcp.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	b := &bridge{
		env:  append(os.Environ(), "GLOVEBOX_STATE_DIR="+dir),
		args: []string{"glovebox", "mcp", "serve", "--config", file, "--trust", "--connect-timeout", "2m", "--timeout", "2m"},
	}
	http := b.listen(t, "-v")
	t.Cleanup(func() {
		http.cmd.Process.Kill()
		if log := <-http.log; t.Failed() {
			t.Logf("the log of the bridge:\n%s", log)
		}
	})
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		for _, over := range []string{"stdio", "http"} {
			t.Run(version+" over "+over, func(t *testing.T) {
				var transport mcp.Transport = &mcp.StreamableClientTransport{Endpoint: http.endpoint}
				if over == "stdio" {
					transport = b.stdio(t)
				}
				useRealServers(t, gatewaytest.Join(t, transport, "ann", version, false), notes)
			})
		}
	}
}

func useRealServers(t *testing.T, p *gatewaytest.Person, notes string) {
	t.Helper()
	ctx := t.Context()
	// The reference server learns the capabilities of its client after the first list of
	// tools, and then offers more.
	var names []string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("tools: %q", names)
		}
	})
	until(t, "the tools of all servers are there", func() bool {
		names = nil
		for tool, err := range p.Tools(ctx, nil) {
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, tool.Name)
		}
		return !slices.ContainsFunc([]string{"everything__trigger-elicitation-request", "everything__trigger-url-elicitation",
			"everything__trigger-sampling-request", "files__read_text_file", "box__execute_code"},
			func(name string) bool { return !slices.Contains(names, name) })
	})
	for _, c := range []struct {
		tool  string
		args  map[string]any
		want  string
		heard string
	}{
		{"everything__get-sum", map[string]any{"a": 2, "b": 40}, "42", ""},
		{"everything__trigger-elicitation-request", map[string]any{}, `"name": "ann"`, "everything: Please provide inputs"},
		{"everything__trigger-url-elicitation", map[string]any{"url": "https://login.example/1", "message": "log in"}, "accept",
			"everything: log in https://login.example/1"},
		{"everything__trigger-sampling-request", map[string]any{"prompt": "hello"}, "said by ann", "sample: "},
		{"everything__trigger-long-running-operation", map[string]any{"duration": 1, "steps": 2}, "completed", "progress: 1 "},
		{"files__read_text_file", map[string]any{"path": filepath.Join(notes, "today.txt")}, "Buy bread.", ""},
		{"files__read_text_file", map[string]any{"path": "/etc/hostname"}, "Access denied", ""},
		{"box__execute_code", map[string]any{"code": "print(6 * 7)"}, "42", ""},
	} {
		p.Forget()
		params := &mcp.CallToolParams{Name: c.tool, Arguments: c.args}
		if strings.HasPrefix(c.heard, "progress") {
			params.SetProgressToken(1)
		}
		res, err := p.CallTool(ctx, params)
		if err != nil {
			t.Errorf("%s: %v", c.tool, err)
			continue
		}
		var text strings.Builder
		for _, one := range res.Content {
			if one, ok := one.(*mcp.TextContent); ok {
				fmt.Fprintln(&text, one.Text)
			}
		}
		if !strings.Contains(text.String(), c.want) {
			t.Errorf("%s: got %s, want %s", c.tool, text.String(), c.want)
		}
		if heard := p.All(); c.heard != "" && !slices.ContainsFunc(heard, func(s string) bool { return strings.HasPrefix(s, c.heard) }) {
			t.Errorf("%s: the client got %q, want %q", c.tool, heard, c.heard)
		}
	}
	for uri, want := range map[string]string{"demo://resource/static/document/features.md": "# ", "demo://resource/dynamic/text/7": "Resource 7"} {
		res, err := p.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
		if err != nil || len(res.Contents) != 1 || !strings.Contains(res.Contents[0].Text, want) {
			t.Errorf("%s: got %+v, %v, want %q", uri, res, err, want)
		}
	}
	prompt, err := p.GetPrompt(ctx, &mcp.GetPromptParams{Name: "everything__args-prompt", Arguments: map[string]string{"city": "Riga"}})
	if err != nil || !strings.Contains(prompt.Messages[0].Content.(*mcp.TextContent).Text, "Riga") {
		t.Errorf("prompt: got %+v, %v", prompt, err)
	}
	done, err := p.Complete(ctx, &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "everything__completable-prompt"},
		Argument: mcp.CompleteParamsArgument{Name: "department", Value: "Eng"}})
	if err != nil || !slices.Contains(done.Completion.Values, "Engineering") {
		t.Errorf("completion: got %+v, %v", done, err)
	}
}
