package mcpkit

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A server cannot send the user to a page that poses as another, reaches this machine or
// runs a script.
func TestCheckElicitation_Pages(t *testing.T) {
	s := session(t, manager(t, Options{}, endpoint("srv", "https://mcp.example.com/")), "srv")
	for _, tt := range []struct {
		page               string
		trusted, untrusted bool // allowed
	}{
		{"https://login.example.com/?state=1", true, true},
		{"http://login.example.com/", true, false},
		{"http://127.0.0.1:8775/mcp", true, false},
		{"https://192.168.0.1/", true, false},
		{"https://169.254.169.254/", true, false},
		{"https://accounts.example.com@evil.example/", false, false},
		{"https://accounts.example.com:x@evil.example/", false, false},
		{"https://\u0430ccounts.example.com/", false, false},
		{"https://h.example/\u202egnp.exe", false, false},
		{"https://h.example/a b", false, false},
		{"javascript:alert(1)", false, false},
		{"file:///etc/passwd", false, false},
		{"", false, false},
		{"https://", false, false},
	} {
		for trust, want := range map[Trust]bool{Trusted: tt.trusted, Untrusted: tt.untrusted} {
			_, err := s.checkElicitation(trust, &mcp.ElicitParams{Mode: "url", URL: tt.page, Message: "log in"})
			if (err == nil) != want {
				t.Errorf("%q, trust %d: %v, want allowed: %v", tt.page, trust, err, want)
			}
		}
	}
}

func TestCheckElicitation_Forms(t *testing.T) {
	s := session(t, manager(t, Options{}, endpoint("srv", "https://mcp.example.com/")), "srv")
	form := func(text string) *mcp.ElicitParams {
		p := &mcp.ElicitParams{Message: "a\u202eb\x1b[2J"}
		if err := json.Unmarshal([]byte(text), &p.RequestedSchema); err != nil {
			t.Fatal(err)
		}
		return p
	}
	asked := form(`{"type":"object","properties":{"name":{"type":"string","description":"x\u200by"}}}`)
	got, err := s.checkElicitation(Untrusted, asked)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got.RequestedSchema)
	if err != nil || got.Message != `a\u202eb\x1b[2J` || !strings.Contains(string(text), `x\\u200by`) {
		t.Errorf("got %q, %s, %v", got.Message, text, err)
	}
	got, err = s.checkElicitation(Trusted, form(`{"properties":{"api_key":{"type":"string"},"password":{"type":"string"},"name":{"type":"string"}}}`))
	if err != nil || !strings.Contains(got.Message, "may be a secret: api_key, password.") {
		t.Errorf("got %q, %v", got.Message, err)
	}
	if _, err := s.checkElicitation(Trusted, form(`{"properties":{"a":{"enum":["x\u001b[2J"]}}}`)); err == nil {
		t.Error("a choice with control characters: no error")
	}
}
