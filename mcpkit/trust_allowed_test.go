package mcpkit

import (
	"context"
	"errors"
	"testing"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// Allowed reports refusals without connecting.
func TestAllowed(t *testing.T) {
	at := func(url string) *mcpjson.Server {
		return &mcpjson.Server{Name: "srv", Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(url)}
	}
	asked := errors.New("the user was not asked")
	for _, c := range []struct {
		name   string
		server *mcpjson.Server
		trust  Trust
		err    error
		policy outbound.Policy
		want   error
	}{
		{name: "a program", server: program("srv", "good"), want: ErrUntrusted},
		{name: "a trusted program", server: program("srv", "good"), trust: Trusted},
		{name: "https", server: at("https://mcp.example.com/mcp")},
		{name: "http", server: at("http://mcp.example.com/mcp"), want: outbound.ErrRefused},
		{name: "this machine", server: at("https://127.0.0.1/mcp"), want: outbound.ErrRefused},
		{name: "this machine, trusted", server: at("http://127.0.0.1/mcp"), trust: Trusted},
		{name: "this machine, by policy", server: at("http://127.0.0.1/mcp"), policy: outbound.Policy{AllowHTTP: true, AllowLocalhost: true}},
		{name: "no answer", server: at("https://mcp.example.com/mcp"), err: asked, want: asked},
	} {
		m := manager(t, Options{Outbound: c.policy, Trust: func(context.Context, *mcpjson.Server) (Trust, error) { return c.trust, c.err }}, c.server)
		if err := session(t, m, "srv").Allowed(t.Context()); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}
