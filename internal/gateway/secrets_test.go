package gateway

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway/gatewaytest"
	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// Neither programs, nor models, nor the log get a key in the URL of a server that fails.
func TestPrograms_KeysOfURLs(t *testing.T) {
	const keys = "/v1/key-in-path/mcp?key=key-in-query"
	upstream := gatewaytest.New("large", filepath.Join(t.TempDir(), "notes"))
	large := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return upstream }, &mcp.StreamableHTTPOptions{JSONResponse: true}))
	t.Cleanup(large.Close)
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()

	var log polltest.Buffer
	o := options(t.TempDir(), mcpkit.Trusted)
	o.Servers.Limits.Message = 64 << 10
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	for name, url := range map[string]string{"large": large.URL, "down": down.URL} {
		o.Servers.Config.Servers = append(o.Servers.Config.Servers, &mcpjson.Server{Name: name, Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(url + keys)})
	}
	g, _ := register(t, o)
	t.Cleanup(func() { g.Close() })
	tools := g.ServerTools(t.Context(), "large")
	say := slices.IndexFunc(tools, func(tool ServerTool) bool { return tool.Tool.Name == "say" })
	if say < 0 {
		t.Fatalf("no tool; log\n%s", log.String())
	}
	check := func(of, text, origin string) {
		t.Helper()
		if strings.Contains(text, "key-in") || !strings.Contains(text, origin) {
			t.Errorf("%s is %s\nwant %s without keys", of, text, origin)
		}
	}
	arguments, err := json.Marshal(map[string]string{"text": strings.Repeat("x", 100<<10)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.CallTool(t.Context(), tools[say], arguments)
	if err == nil {
		t.Fatal("a result beyond the limit: no error")
	}
	check("the error of a call", err.Error(), large.URL)
	g.ServerTools(t.Context(), "down") // waits until it is listed
	why := g.WhyUnavailable(t.Context(), "down", "")
	if why == nil {
		t.Fatal("the server is available")
	}
	check("the note", why.Text, down.URL)
	until(t, "the warning", func() bool { return strings.Contains(log.String(), "server not available") })
	check("the log", log.String(), down.URL)
}
