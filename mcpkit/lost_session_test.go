package mcpkit

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// Servers after the examples of the TypeScript SDK answer 400 in place of 404 after a restart.
// An error about something else ends no session, and says what the server said.
func TestD6_LostSession_BadRequest(t *testing.T) {
	var sessions, calls atomic.Int32
	url := hostileHTTP(t, func(w http.ResponseWriter, r *http.Request, m message) bool {
		refuse := func(text string) bool {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","error":{"code":-32000,"message":%q},"id":null}`, text)
			return true
		}
		switch {
		case m.Method == "initialize":
			w.Header().Set("Mcp-Session-Id", fmt.Sprint("s", sessions.Add(1)))
		case m.Params.Name == "refused":
			return refuse("Bad Request: too odd")
		case m.Method == "tools/call" && r.Header.Get("Mcp-Session-Id") == "s1":
			return refuse("Bad Request: No valid session ID provided")
		case m.Method == "tools/call":
			calls.Add(1)
		}
		return false
	})
	s := session(t, manager(t, Options{Limits: Limits{Request: patience}}, endpoint("srv", url)), "srv")
	wantCall(t, s, "other", nil, "good")
	if sessions.Load() != 2 || calls.Load() != 1 {
		t.Errorf("%d sessions and %d calls, want a second session and one call", sessions.Load(), calls.Load())
	}
	if _, err := call(t, s, "refused", nil); err == nil || !strings.Contains(err.Error(), "Bad Request: too odd") {
		t.Errorf("a refused call: got %v", err)
	}
	wantCall(t, s, "other", nil, "good")
	if sessions.Load() != 2 {
		t.Errorf("a refused call ended the session")
	}
}
