package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// event is a server-sent event.
type event struct {
	id      string
	message struct {
		ID     any
		Method string
		Params struct{ Message string }
		Result *answer
	}
}

// events reads the event stream of a response. It returns an error when the connection is
// cut.
func events(t *testing.T, res *http.Response, each func(event) (more bool)) error {
	t.Helper()
	if kind := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || !strings.HasPrefix(kind, "text/event-stream") {
		body, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20))
		t.Fatalf("got status %d, type %q, %s; want a stream", res.StatusCode, kind, body)
	}
	var e event
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		switch name, value, _ := strings.Cut(lines.Text(), ":"); name {
		case "id":
			e.id = strings.TrimSpace(value)
		case "data":
			if value = strings.TrimSpace(value); value == "" {
				continue
			}
			if err := json.Unmarshal([]byte(value), &e.message); err != nil {
				t.Fatalf("event %q: %v", value, err)
			}
		case "":
			if lines.Text() == "" {
				if e.id != "" && !each(e) {
					return nil
				}
				e = event{}
			}
		}
	}
	return lines.Err()
}

// TestResume_AfterCutConnection cuts the connection of an MCP session in the middle of a call and
// checks that the client gets the missed events once and in order: while the call still
// runs and after it has ended, and whether or not the server noticed the cut.
func TestResume_AfterCutConnection(t *testing.T) {
	t.Parallel()
	p := launchSteady(t, state(t))
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	do := func(method, body string, header ...string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, method, p.front.url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "application/json, text/event-stream")
		if method == http.MethodPost {
			req.Header.Set("Content-Type", "application/json")
		} else {
			req.Header.Set("Accept", "text/event-stream")
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		return res
	}
	res := do(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"cut","version":"1"}}}`)
	io.Copy(io.Discard, res.Body)
	session := []string{"Mcp-Session-Id", res.Header.Get("Mcp-Session-Id"), "MCP-Protocol-Version", "2025-11-25"}
	if session[1] == "" {
		t.Fatalf("initialize: status %d and no session", res.StatusCode)
	}
	if res := do(http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, session...); res.StatusCode != http.StatusAccepted {
		t.Errorf("notification: got status %d, want 202", res.StatusCode)
	}

	for _, c := range []struct {
		name string
		cut  func()
		late bool // whether the call is over when the client comes back
	}{
		{"at once", p.front.cut, false},
		{"late", p.front.cut, true},
		{"unnoticed", p.front.lose, false},
		{"unnoticed and late", p.front.lose, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := p.create(t, "cut "+c.name)
			code := "import time\nfor i in range(4):\n    print('line', i, flush=True)\n    time.sleep(0.7)"
			call, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": c.name, "method": "tools/call", "params": map[string]any{
				"name": "run_code", "arguments": map[string]any{"context_id": id, "code": code}, "_meta": map[string]any{"progressToken": 7},
			}})
			if err != nil {
				t.Fatal(err)
			}
			var last, output string
			err = events(t, do(http.MethodPost, string(call), session...), func(e event) bool {
				last = e.id
				if e.message.Method == "notifications/progress" {
					output += e.message.Params.Message
					c.cut()
				}
				return true // until the cut is noticed
			})
			if err == nil || output == "" || strings.Contains(output, "line 3") {
				t.Fatalf("the connection that was to be cut ended with %v after %q", err, output)
			}
			if c.late {
				p.run(t, id, "1") // waits for the call
			}
			seen := map[string]bool{last: true}
			var result *answer
			err = events(t, do(http.MethodGet, "", append(session, "Last-Event-ID", last)...), func(e event) bool {
				if seen[e.id] {
					t.Errorf("event %q comes a second time", e.id)
				}
				seen[e.id] = true
				if e.message.Method == "notifications/progress" {
					output += e.message.Params.Message
				}
				if e.message.ID == c.name {
					result = e.message.Result
				}
				return result == nil
			})
			if err != nil || result == nil {
				t.Fatalf("the resumed stream has no answer: %v", err)
			}
			const want = "line 0\nline 1\nline 2\nline 3\n"
			if got := result.str("stdout"); got != want {
				t.Errorf("the answer: got %q, want %q", got, want)
			}
			if !strings.HasPrefix(want, output) || !strings.Contains(output, "line 2") {
				t.Errorf("output while it ran: got %q, want %q without a gap", output, want)
			}
		})
	}
	if res := do(http.MethodDelete, "", session...); res.StatusCode >= 300 {
		t.Errorf("DELETE: got status %d", res.StatusCode)
	}
	p.stop(t)
}
