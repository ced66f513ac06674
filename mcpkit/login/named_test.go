package login

import (
	"errors"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// A trusted server on the Internet names addresses at which only this machine, or its
// network, answers.
func TestCheckURL_TrustedServerNamesAddresses(t *testing.T) {
	for _, tt := range []struct {
		server, metadata, address string
		want                      outbound.Reason
	}{
		{"https://mcp.example.com/mcp", "", "https://login.example.org/token", ""},
		{"https://mcp.example.com/mcp", "", "https://169.254.169.254/latest", outbound.Metadata},
		{"https://mcp.example.com/mcp", "", "https://10.0.0.1/", outbound.Private},
		{"https://mcp.example.com/mcp", "", "https://localhost:8775/", outbound.Localhost},
		{"https://mcp.example.com/mcp", "", "https://[::1]/", outbound.Localhost},
		{"https://mcp.example.com/mcp", "https://10.0.0.1/meta", "https://10.0.0.1/token", ""},
		{"https://10.0.0.2/mcp", "", "https://10.0.0.1/token", ""},
		{"https://10.0.0.2/mcp", "", "https://169.254.169.254/latest", outbound.Metadata},
		{"http://127.0.0.1:1/mcp", "", "http://127.0.0.1:2/token", ""},
	} {
		h, err := New(Options{}).Handler(Server{Name: "srv", URL: tt.server, MetadataURL: tt.metadata}, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = h.checkURL(tt.address)
		r, refused := errors.AsType[*outbound.Refusal](err)
		if refused != (tt.want != "") || refused && r.Reason != tt.want || !refused && err != nil {
			t.Errorf("%s names %s: got %v, want %q", tt.server, tt.address, err, tt.want)
		}
		h.Close()
	}
}

func TestCheckURL_InvalidCharacters(t *testing.T) {
	h, err := New(Options{}).Handler(Server{Name: "srv", URL: "https://mcp.example.com/mcp"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for _, address := range []string{"https://h.example/a b", "https://h.example/\u202e", "https://\u0430pple.example/"} {
		if err := h.checkURL(address); err == nil || !strings.Contains(err.Error(), "invalid") {
			t.Errorf("%q: got %v", address, err)
		}
	}
}

func TestCheckMixUp(t *testing.T) {
	for _, tt := range []struct {
		name, issuer, page, token string
		ok                        bool
	}{
		{"one host", "https://as.example.com", "https://as.example.com/a", "https://as.example.com/t", true},
		{"token at another site", "https://accounts.google.com", "https://accounts.google.com/a", "https://oauth2.googleapis.com/t", true},
		{"issuer at another site", "https://cognito-idp.us-east-1.amazonaws.com/x", "https://x.auth.example.net/a", "https://x.auth.example.net/t", true},
		{"subdomains", "https://as.example.com", "https://login.example.com/a", "https://as.example.com/t", true},
		{"ports of one host", "http://127.0.0.1:1", "http://127.0.0.1:2/a", "http://127.0.0.1:3/t", true},
		{"no page", "https://as.example.com", "", "https://as.example.com/t", true},
		{"page of another", "https://evil.example", "https://accounts.google.com/a", "https://evil.example/t", false},
		{"page below the same public suffix", "https://evil.co.uk", "https://bank.co.uk/a", "https://evil.co.uk/t", false},
		{"page at another address", "http://127.0.0.1:1", "http://127.0.0.2:1/a", "http://127.0.0.1:1/t", false},
	} {
		err := checkMixUp(&oauthex.AuthServerMeta{Issuer: tt.issuer, AuthorizationEndpoint: tt.page, TokenEndpoint: tt.token})
		if (err == nil) != tt.ok {
			t.Errorf("%s: got %v, want ok: %v", tt.name, err, tt.ok)
		}
	}
}
