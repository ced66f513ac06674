//go:build linux

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway/gatewaytest"
)

// A bareMessage is a message with its required fields only.
type bareMessage struct {
	method   string
	optional bool // the schema lets a request go without params
}

// bareMessages are all messages that a client may send after the handshake.
var bareMessages = []bareMessage{
	{"ping", true}, {"tools/list", true}, {"prompts/list", true}, {"resources/list", true}, {"resources/templates/list", true},
	{"tools/call", false}, {"prompts/get", false}, {"resources/read", false}, {"resources/subscribe", false}, {"resources/unsubscribe", false},
	{"completion/complete", false}, {"logging/setLevel", false}, {"server/discover", true}, {"subscriptions/listen", false},
	{"tasks/get", false}, {"tasks/update", false}, {"tasks/cancel", false}, {"no/such", false},
	{"notifications/initialized", true}, {"notifications/cancelled", true}, {"notifications/progress", false},
	{"notifications/roots/list_changed", true}, {"notifications/no/such", true},
}

// bareParams are the forms of empty params in a message.
var bareParams = []string{``, `,"params":null`, `,"params":{}`}

func (m bareMessage) notifies() bool { return strings.HasPrefix(m.method, "notifications/") }

func (m bareMessage) text(id int, params string) string {
	if m.notifies() {
		return fmt.Sprintf(`{"jsonrpc":"2.0","method":%q%s}`, m.method, params)
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q%s}`, id, m.method, params)
}

// check holds an answer to such a message: never an internal error, and no error at
// all where an older client may leave the params out.
func (m bareMessage) check(t *testing.T, version, params string, answer []byte) {
	t.Helper()
	var got struct {
		Result json.RawMessage
		Error  *jsonrpc.Error
	}
	if err := json.Unmarshal(answer, &got); err != nil || (got.Result == nil) == (got.Error == nil) {
		t.Errorf("%s%s: %q is no answer: %v", m.method, params, answer, err)
		return
	}
	legacy := version < "2026-07-28" && m.method != "server/discover"
	switch {
	case got.Error != nil && (got.Error.Code == jsonrpc.CodeInternalError || got.Error.Code == 0):
		t.Errorf("%s%s: %v", m.method, params, got.Error)
	case got.Error != nil && m.optional && legacy && !strings.Contains(params, "null"):
		t.Errorf("%s%s: %v, want a result", m.method, params, got.Error)
	}
}

// The error for an unknown tool lists the tools.
func TestBridge_UnknownToolListsTools(t *testing.T) {
	b := newBridge(t, "auto")
	p := gatewaytest.Join(t, b.stdio(t), "ann", "2025-11-25", false)
	for name, want := range map[string]string{"a__sayy": "Did you mean 'a__say'?", "x": "The tools are: a__ask, a__change"} {
		if _, err := p.CallTool(t.Context(), &mcp.CallToolParams{Name: name}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
}

const handshake = `{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`

// Clients send requests without params, with null or with an empty object. The bridge
// answers each, over both transports.
func TestBridge_RequestsWithoutParams(t *testing.T) {
	for _, version := range []string{"2024-11-05", "2025-06-18", "2025-11-25", "2026-07-28"} {
		t.Run("stdio "+version, func(t *testing.T) {
			t.Parallel()
			bareOverStdio(t, newBridge(t, "auto"), version)
		})
		t.Run("http "+version, func(t *testing.T) {
			t.Parallel()
			bareOverHTTP(t, newBridge(t, "auto"), version)
		})
	}
}

func bareOverStdio(t *testing.T, b *bridge, version string) {
	var in strings.Builder
	if version < "2026-07-28" {
		fmt.Fprintf(&in, handshake+"\n", version)
		in.WriteString(`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n")
	}
	asked := make(map[string]func(answer []byte)) // by id
	for _, params := range bareParams {
		for _, m := range bareMessages {
			id := len(asked)
			in.WriteString(m.text(id, params) + "\n")
			if !m.notifies() {
				asked[fmt.Sprint(id)] = func(answer []byte) { m.check(t, version, params, answer) }
			}
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := &exec.Cmd{Path: exe, Args: b.args, Env: b.env, Stdin: strings.NewReader(in.String()), Stderr: &log}
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%v", err)
	}
	for line := range bytes.Lines(out) {
		var id struct{ ID json.RawMessage }
		if err := json.Unmarshal(line, &id); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if check := asked[string(id.ID)]; check != nil {
			delete(asked, string(id.ID))
			check(line)
		}
	}
	if len(asked) > 0 || strings.Contains(log.String(), "panic") {
		t.Errorf("%d requests have no answer; the log:\n%.2000s", len(asked), &log)
	}
}

func bareOverHTTP(t *testing.T, b *bridge, version string) {
	s := b.listen(t)
	send := func(text, method, session string) (*http.Response, []byte) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.endpoint, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		r.Header.Set("MCP-Protocol-Version", version)
		r.Header.Set("Mcp-Method", method)
		if session != "" {
			r.Header.Set("Mcp-Session-Id", session)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
			for line := range bytes.Lines(body) {
				if data, ok := bytes.CutPrefix(line, []byte("data: {")); ok {
					body = append([]byte("{"), data...)
				}
			}
		}
		return res, body
	}
	session := ""
	if version < "2026-07-28" {
		res, body := send(fmt.Sprintf(handshake, version), "initialize", "")
		if session = res.Header.Get("Mcp-Session-Id"); session == "" {
			t.Fatalf("initialize: %s %s", res.Status, body)
		}
	}
	for _, params := range bareParams {
		for i, m := range bareMessages {
			res, body := send(m.text(i, params), m.method, session)
			switch {
			case !m.notifies():
				m.check(t, version, params, body)
			case res.StatusCode >= http.StatusInternalServerError:
				t.Errorf("%s%s: %s %s", m.method, params, res.Status, body)
			}
		}
	}
}
