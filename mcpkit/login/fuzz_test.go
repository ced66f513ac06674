package login

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// A stored record yields a token only for its own server, and only with everything that
// a refresh needs.
func FuzzStore(f *testing.F) {
	s := Server{Name: "srv", URL: "https://mcp.example.com/mcp"}
	key := s.key()
	f.Add([]byte(`{"version":1,"data":{"server":"` + key + `","issuer":"https://as","resource":"https://mcp.example.com/mcp","token_endpoint":"https://as/token","access_token":"a","refresh_token":"r","begun":"2026-01-02T03:04:05Z","expiry":"2026-01-02T04:04:05Z","asked":["x"],"client":{"id":"c"}}}`))
	f.Add([]byte(`{"version":1,"data":{"server":"another","access_token":"a"}}`))
	f.Add([]byte(`{"version":1,"data":{"server":"` + key + `","access_token":"a"}}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`[`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, key+".json"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		h, err := New(Options{Store: OpenStore(dir)}).Handler(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := h.current()
		if err != nil {
			return
		}
		if r.Server != key || (r.Access != "" || r.Refresh != "") && (r.Issuer == "" || r.Resource == "" || r.Token == "") {
			t.Errorf("took %+v", r)
		}
		if _, err := h.logins.opts.Store.State(s); err != nil {
			t.Errorf("read once and not twice: %v", err)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add("http://127.0.0.1:1/callback?code=c&state=s&iss=https%3A%2F%2Fas")
	f.Add("?error=access_denied&error_description=no")
	f.Add("%zz")
	f.Fuzz(func(t *testing.T, redirect string) {
		a, err := ParseAuthorizationResponse(redirect)
		if err == nil && a.Code == "" && a.Error == "" {
			t.Errorf("%q is no answer", redirect)
		}
		if err != nil {
			return
		}
		from := &authority{}
		from.meta.Issuer = "https://as.example.com"
		from.meta.AuthorizationResponseIssParameterSupported = true
		if err := a.check("state", from); err == nil && (a.State != "state" || a.Issuer != "https://as.example.com" || a.Error != "") {
			t.Errorf("%+v is taken", a)
		} else if err != nil && (!utf8.ValidString(err.Error()) || strings.ContainsAny(err.Error(), "\x1b\n")) {
			t.Errorf("%q is not to be shown", err)
		}
	})
}

func FuzzChallenge(f *testing.F) {
	f.Add(`Bearer error="insufficient_scope", scope="a b", resource_metadata="https://x"`)
	f.Add(`Basic realm="x", Bearer`)
	f.Add(`Bearer a=`)
	f.Fuzz(func(t *testing.T, header string) {
		c := parseChallenge(http.Header{"Www-Authenticate": {header}})
		if len(union(c.scopes)) > maxScopes {
			t.Errorf("%d scopes", len(c.scopes))
		}
	})
}

// Authorize reads a bounded part of a refusal's body.
func TestAuthorize_LongRefusal(t *testing.T) {
	h, err := New(Options{Store: OpenStore(t.TempDir())}).Handler(Server{Name: "srv", URL: "https://mcp.example.com/mcp"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReader(strings.Repeat("x", 1<<20))
	err = h.Authorize(t.Context(), nil, &http.Response{Status: "403 Forbidden", StatusCode: http.StatusForbidden, Body: io.NopCloser(text)})
	if read := 1<<20 - text.Len(); err == nil || !strings.Contains(err.Error(), "refuses the request") || read != maxRefusal {
		t.Errorf("%d bytes were read: %v", read, err)
	}
}
