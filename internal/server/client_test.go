package server

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestDefaultContext_OfEachClient: a client that names no context has one of its
// own, over HTTP and over stdio, and another client of the owner uses it by its id. Calls
// without a session make a new context each and say so.
func TestDefaultContext_OfEachClient(t *testing.T) {
	s, url := serve(t, withBoxes(t, nil))
	overHTTP := func() *mcp.ClientSession {
		return connect(t, &mcp.StreamableClientTransport{Endpoint: url}, "2025-11-25", nil)
	}
	overStdio := func(version string) *mcp.ClientSession {
		in, toServer := io.Pipe()
		fromServer, out := io.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- s.ServeStdio(t.Context(), in, out) }()
		cs := connect(t, &mcp.IOTransport{Reader: fromServer, Writer: toServer}, version, nil)
		t.Cleanup(func() {
			_ = cs.Close()
			toServer.Close()
			if err := <-ended; err != nil {
				t.Errorf("serve stdio: %v", err)
			}
		})
		return cs
	}
	clients := map[string]*mcp.ClientSession{
		"http 1": overHTTP(), "http 2": overHTTP(), "stdio 1": overStdio("2025-11-25"), "stdio 2": overStdio("2026-07-28"),
	}
	ids := map[string]string{}
	for name, cs := range clients {
		m, said := must(t, cs, "run_code", args{"code": "who = '" + name + "'"})
		id, _ := m["context_id"].(string)
		if !strings.HasPrefix(id, "ctx-") || m["context_created"] != true || !strings.Contains(said, id) {
			t.Errorf("%s: got %v, text %s; want the id of a new context in both", name, m, said)
		}
		ids[name] = id
	}
	for name, cs := range clients {
		for _, a := range []args{{}, {"context_id": "default"}, {"context_id": ids[name]}} {
			a["code"] = "print(who)"
			m, _ := must(t, cs, "run_code", a)
			if m["stdout"] != name+"\n" || m["context_created"] != nil || a["context_id"] != ids[name] && m["context_id"] != ids[name] {
				t.Errorf("%s, again with %v: got %v", name, a["context_id"], m)
			}
		}
		for other, id := range ids {
			if m, _ := must(t, cs, "run_code", args{"code": "print(who)", "context_id": id}); m["stdout"] != other+"\n" {
				t.Errorf("%s in the context of %s: got %v", name, other, m)
			}
		}
	}

	seen := map[string]bool{}
	for _, version := range []string{"", "2025-11-25", "", "2025-11-25"} {
		h := header{"Accept": "application/json, text/event-stream", headerVersion: version}
		_, body := do(t, "POST", url, h, toolCall(1, "run_code", `{"code":"'who' in globals()"}`))
		var answer struct {
			Result struct {
				Structured struct {
					ID      string `json:"context_id"`
					Created bool   `json:"context_created"`
					Stdout  string
					Notes   []string
				} `json:"structuredContent"`
			}
		}
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		got := answer.Result.Structured
		if got.ID == "" || seen[got.ID] || !got.Created || got.Stdout != "False\n" || !strings.Contains(strings.Join(got.Notes, " "), "pass context_id "+got.ID) {
			t.Errorf("a call without a session: got %s; want a new context and its id", body)
		}
		seen[got.ID] = true
	}
	cs := connect(t, &mcp.StreamableClientTransport{Endpoint: url}, "2026-07-28", nil)
	for range 2 {
		if m, _ := must(t, cs, "run_code", args{"code": "'who' in globals()"}); m["context_created"] != true || m["stdout"] != "False\n" {
			t.Errorf("a stateless call: got %v, want a new context", m)
		}
	}
}
