//go:build linux

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/codemode"
	"github.com/glovebox-dev/glovebox/internal/codemode/approval"
	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/egress/secret"
	"github.com/glovebox-dev/glovebox/internal/server"
	"github.com/glovebox-dev/glovebox/internal/server/auth"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// oneTool has one tool, which can be listed only.
type oneTool struct{ codemode.Servers }

func (oneTool) Names() []string { return []string{"files"} }
func (oneTool) Tools(context.Context, string) []codemode.Tool {
	return []codemode.Tool{{Server: "files", Tool: &mcp.Tool{Name: "delete_file", InputSchema: map[string]any{"type": "object"}}}}
}
func (oneTool) Hold() (release func()) { return func() {} }

// TestAuditLines_HaveTheFormOfTheDocuments: the lines about calls, refused requests, approvals, calls
// by code and secrets have the keys that the documents show, in that order, with values of the same kind.
func TestAuditLines_HaveTheFormOfTheDocuments(t *testing.T) {
	var lines bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&lines, nil))
	k := newTokens(t)
	v, err := auth.Open(auth.Config{TokensFile: k.file, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	s := server.New(server.Options{Tools: tools.Deps{Boxes: box.New(box.DefaultConfig(), box.Parts{})}, Auth: v, Audit: log})
	for _, token := range []string{k.alice, k.alice + "x"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/mcp",
			strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get_sessions","arguments":{}}}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+token)
		s.Handler().ServeHTTP(httptest.NewRecorder(), r)
	}

	who := codemode.Identity{Owner: "token alice", Box: "s1"}
	a := approval.New(approval.Options{Audit: log})
	t.Cleanup(a.Stop)
	once := func(context.Context, *mcp.ElicitParams) (*mcp.ElicitResult, error) {
		return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"call_1": "once"}}, nil
	}
	if _, err := a.Serve(t.Context(), approval.Caller{Owner: who.Owner, Elicit: once}, func(ctx context.Context) (*mcp.CallToolResult, error) {
		_, err := a.Approve(ctx, codemode.Request{Identity: who, Server: "files", Tool: "write_file", Arguments: json.RawMessage("{}")})
		return &mcp.CallToolResult{}, err
	}); err != nil {
		t.Fatal(err)
	}

	code := codemode.New(codemode.Options{Servers: oneTool{}, Policy: codemode.Policy{{Decision: codemode.Deny}}, Log: log}).Begin(who)
	defer code.End()
	if _, err := code.Call(t.Context(), "tool", []byte(`{"name":"files.delete_file","arguments":{}}`)); err != nil {
		t.Fatal(err)
	}

	n := &networks{log: slog.New(slog.DiscardHandler), audit: log}
	n.report(secret.Event{Box: egress.Box{Owner: who.Owner, ID: who.Box}, Host: "api.example.org", Kind: secret.Swapped, Secrets: []string{"github"}})

	written := make(map[string][]string) // by message
	for line := range strings.Lines(lines.String()) {
		msg, form := formOf(t, line)
		if written[msg] != nil {
			t.Errorf("two lines %q", msg)
		}
		written[msg] = form
	}
	for document, want := range map[string][]string{
		"security.md":  {"call", "refused", "approval", "call of a tool by code", "secret"},
		"code-mode.md": {"call of a tool by code", "call of a tool by code"},
	} {
		b, err := os.ReadFile("../../docs/" + document)
		if err != nil {
			t.Fatal(err)
		}
		var shown []string
		for _, line := range regexp.MustCompile(`(?m)^\{"time":.*\}$`).FindAllString(string(b), -1) {
			msg, form := formOf(t, line)
			if msg == "egress" { // see TestAuditLines_OfEgress
				continue
			}
			shown = append(shown, msg)
			if !slices.Equal(form, written[msg]) {
				t.Errorf("%s shows a line %q with %q; a real one has %q", document, msg, form, written[msg])
			}
		}
		if !slices.Equal(shown, want) {
			t.Errorf("%s shows the lines %q, want %q", document, shown, want)
		}
	}
}

// formOf returns the message of a line of a log, and its keys in order, each with the kind of its
// value; the level with the value itself.
func formOf(t *testing.T, line string) (msg string, form []string) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(line))
	for next := func() json.Token {
		token, err := d.Token()
		if err != nil {
			t.Fatalf("line %s: %v", line, err)
		}
		return token
	}; ; {
		key := next()
		if key == json.Delim('{') {
			key = next()
		}
		if key == json.Delim('}') {
			return msg, form
		}
		value := next()
		switch key {
		case "msg":
			msg, _ = value.(string)
		case "level":
			form = append(form, fmt.Sprint(key, " ", value))
		default:
			form = append(form, fmt.Sprintf("%v %T", key, value))
		}
	}
}
