package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gofrs/flock"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/logintest"
)

// offering is an SDK server with the tools of two scenarios. It records the user's
// answers.
func offering(t *testing.T) (url string, said map[string]any) {
	t.Helper()
	said = make(map[string]any)
	s := mcp.NewServer(&mcp.Implementation{Name: "t", Version: "1"}, nil)
	type numbers struct {
		A int `json:"a"`
		B int `json:"b"`
	}
	mcp.AddTool(s, &mcp.Tool{Name: "add_numbers", Description: "Adds."}, func(_ context.Context, _ *mcp.CallToolRequest, in numbers) (*mcp.CallToolResult, any, error) {
		said["sum"] = in.A + in.B
		return nil, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "test_reconnection", Description: "Fails."}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return nil, nil, errors.New("no")
	})
	mcp.AddTool(s, &mcp.Tool{Name: "test_client_elicitation_defaults", Description: "Asks."}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		res, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "?", RequestedSchema: map[string]any{
			"type": "object",
			"properties": map[string]any{
				"name": map[string]any{"type": "string", "default": "Ann"},
				"off":  map[string]any{"type": "boolean", "default": false},
				"sure": map[string]any{"type": "boolean"},
			},
		}})
		if err != nil {
			return nil, nil, err
		}
		for k, v := range res.Content {
			said[k] = v
		}
		return nil, nil, nil
	})
	ts := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil))
	t.Cleanup(ts.Close)
	return ts.URL, said
}

// wantsLogin is a server that requires a login; issuer is the issuer that its answers
// claim, "" the right one.
func wantsLogin(t *testing.T, issuer string) (url string) {
	t.Helper()
	s := logintest.New()
	s.ResponseIssuer = issuer
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

func TestRun(t *testing.T) {
	url, said := offering(t)
	turns := t.TempDir()
	guarded, evil := wantsLogin(t, ""), wantsLogin(t, "https://evil.example")
	for _, c := range []struct {
		name, context string
		args          []string
		want          string // of the error; empty for none
	}{
		{"tools_call", "", []string{url}, ""},
		{"elicitation-sep1034-client-defaults", "", []string{url}, ""},
		{"http-custom-headers", `{"toolCalls":[{"name":"add_numbers","arguments":{"a":1,"b":1}}]}`, []string{url}, ""},
		{"http-custom-headers", `{}`, []string{url}, "no calls to make"},
		{"http-custom-headers", `{`, []string{url}, "MCP_CONFORMANCE_CONTEXT"},
		{"http-standard-headers", "", []string{url}, "want some of each"},
		{"sse-retry", "", []string{url}, `"test_reconnection" failed`},
		{"sep-2322-client-request-state", "", []string{url}, "test_mrtr_echo_state"},
		{"initialize", "", []string{guarded}, ""},
		{"initialize", `{"client_id":"c","private_key_pem":"k"}`, []string{guarded}, "no PEM"},
		{"initialize", "", []string{evil}, "the authorization response is from"},
		{"auth/iss-wrong-issuer", "", []string{evil}, ""},
		{"auth/iss-wrong-issuer", "", []string{url}, "want a refusal"},
		{"tools_call", "", []string{"http://127.0.0.1:1/mcp"}, "connect"},
		{"tools_call", "", nil, "URL"},
		{"what", "", []string{url}, `"what"`},
	} {
		clear(said)
		env := map[string]string{"GLOVEBOX_CONFORMANCE_TURNS": turns, "MCP_CONFORMANCE_SCENARIO": c.name, "MCP_CONFORMANCE_CONTEXT": c.context}
		err := run(c.args, func(name string) string { return env[name] })
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %q and %q: got %v, want %q", c.name, c.args, c.context, err, c.want)
		}
		switch {
		case c.name == "tools_call" && err == nil && said["sum"] != 8:
			t.Errorf("the server got %v", said)
		case strings.HasPrefix(c.name, "elicit") && (said["name"] != "Ann" || said["off"] != false || said["sure"] != true):
			t.Errorf("the user said %v", said)
		}
	}
}

// TestTurn_IsExclusive: a place that one client holds is not given to another.
func TestTurn_IsExclusive(t *testing.T) {
	dir := t.TempDir()
	held := func() bool {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(files) != 1 {
			t.Fatalf("got %q, %v", files, err)
		}
		l := flock.New(files[0])
		defer l.Close()
		free, err := l.TryLock()
		if err != nil {
			t.Fatal(err)
		}
		return !free
	}
	end, err := turn(dir, "tools_call")
	if err != nil {
		t.Fatal(err)
	}
	if !held() {
		t.Error("others have the turn too")
	}
	end()
	if held() {
		t.Error("the turn has not ended")
	}
	if _, err := turn(filepath.Join(dir, "none"), "tools_call"); err == nil {
		t.Error("a turn in no directory")
	}
}
