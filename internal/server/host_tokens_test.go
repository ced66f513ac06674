package server

import "testing"

// TestHosts_WithTokensOnLoopback: over loopback, a Host header that does not name the server is
// refused although the server requires tokens, with a token and without.
func TestHosts_WithTokensOnLoopback(t *testing.T) {
	p := newPeople(t)
	_, url := serve(t, p.options(nil))
	for host, want := range map[string]struct{ with, without int }{
		"localhost:8775":    {200, 401},
		"127.0.0.1":         {200, 401},
		"evil.example":      {403, 403},
		"evil.example:8775": {403, 403},
		"192.0.2.1:8775":    {403, 403},
	} {
		if res, body := do(t, "POST", url, p.as("alice", "Host", host), ping); res.StatusCode != want.with {
			t.Errorf("Host %s with a token: %s %.200s, want %d", host, res.Status, body, want.with)
		}
		if res, body := do(t, "POST", url, header{"Host": host, "Accept": mcpAccept}, ping); res.StatusCode != want.without {
			t.Errorf("Host %s without a token: %s %.200s, want %d", host, res.Status, body, want.without)
		}
	}
}
