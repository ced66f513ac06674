package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
	"github.com/glovebox-dev/glovebox/internal/tracing"
)

// TestRequests_WithoutParams sends every method without params, with and without a
// handshake.
func TestRequests_WithoutParams(t *testing.T) {
	methods := []string{
		"ping", "tools/list", "tools/call", "prompts/list", "prompts/get", "resources/list", "resources/read",
		"resources/templates/list", "resources/subscribe", "resources/unsubscribe", "completion/complete", "logging/setLevel",
		"server/discover", "subscriptions/listen", "tasks/get", "tasks/update", "tasks/cancel", "no/such",
		"notifications/initialized", "notifications/cancelled", "notifications/progress", "notifications/roots/list_changed",
	}
	for _, first := range []string{initBody + "\n" + `{"jsonrpc":"2.0","method":"notifications/initialized"}`, ""} {
		var log, out bytes.Buffer
		s := New(Options{
			Version: "test", Tools: tools.Deps{Boxes: box.New(box.DefaultConfig(), box.Parts{})},
			Trace: tracing.New(noop.NewTracerProvider()), Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		in, asked := &strings.Builder{}, make(map[string]string)
		fmt.Fprintln(in, first)
		for _, params := range []string{``, `,"params":null`, `,"params":{}`} {
			for _, method := range methods {
				if strings.HasPrefix(method, "notifications/") {
					fmt.Fprintf(in, `{"jsonrpc":"2.0","method":%q%s}`+"\n", method, params)
					continue
				}
				id := fmt.Sprintf(`"%s%s"`, method, strings.TrimPrefix(params, `,"params":`))
				asked[id] = method
				fmt.Fprintf(in, `{"jsonrpc":"2.0","id":%s,"method":%q%s}`+"\n", id, method, params)
			}
		}
		if err := s.ServeStdio(context.Background(), strings.NewReader(in.String()), &out); err != nil {
			t.Error(err)
		}
		for line := range bytes.Lines(out.Bytes()) {
			var m struct {
				ID    json.RawMessage
				Error *jsonrpc.Error
			}
			if err := json.Unmarshal(line, &m); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			delete(asked, string(m.ID))
			if m.Error != nil && (m.Error.Code == jsonrpc.CodeInternalError || m.Error.Code == 0) {
				t.Errorf("%s: %v", m.ID, m.Error)
			}
		}
		if len(asked) > 0 || strings.Contains(log.String(), "panic") {
			t.Errorf("without an answer: %v; the log:\n%.2000s", asked, &log)
		}
	}
}
