//go:build linux

package cli

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

// The collector gets the spans of a request, its tool and its box, in the trace that the
// request names, without code and output.
func TestServe_Traces(t *testing.T) {
	var mu sync.Mutex
	var got []*spans.Span
	var text strings.Builder
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		var message collector.ExportTraceServiceRequest
		if err != nil || proto.Unmarshal(data, &message) != nil {
			t.Errorf("got %s: %d bytes, %v", r.URL, len(data), err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		text.WriteString(prototext.Format(&message))
		for _, rs := range message.GetResourceSpans() {
			for _, ss := range rs.GetScopeSpans() {
				got = append(got, ss.GetSpans()...)
			}
		}
	}))
	defer srv.Close()
	s := launch(t, endpoint, func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Environ(), "OTEL_EXPORTER_OTLP_ENDPOINT="+srv.URL)
	}, "glovebox", "serve", "--port", "0", "--state-dir", t.TempDir(), "--pool-size", "0")
	s.awaitReady()

	post := func(body string, header ...string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "POST", s.endpoint, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if answer, _ := io.ReadAll(res.Body); res.StatusCode != 200 {
			t.Fatalf("got %s: %s", res.Status, answer)
		}
	}
	const (
		older  = "11111111111111111111111111111111"
		modern = "22222222222222222222222222222222"
		sdk    = "33333333333333333333333333333333"
	)
	post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"execute_code","arguments":{"session_id":"hidden-id","code":"print('hidden-output')"}}}`,
		"Traceparent", "00-"+older+"-aaaaaaaaaaaaaaaa-01")
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"hidden-client","version":"1"},"traceparent":"00-` + modern + `-bbbbbbbbbbbbbbbb-01"}`
	post(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"execute_code","arguments":{"session_id":"hidden-id","code":"raise ValueError('hidden-error')"},`+meta+`}}`,
		"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "execute_code", "Traceparent", "00-"+older+"-cccccccccccccccc-01")
	post(`{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{`+strings.ReplaceAll(meta, modern, sdk)+`}}`,
		"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/list")
	s.cmd.Process.Signal(syscall.SIGTERM) // sends what is left
	if code, log := s.wait(30 * time.Second); code != 0 {
		t.Fatalf("got exit code %d\n%s", code, log)
	}

	mu.Lock()
	defer mu.Unlock()
	tree := map[string]string{} // of each trace, the path of names
	byID := map[string]*spans.Span{}
	for _, sp := range got {
		byID[string(sp.GetSpanId())] = sp
	}
	for _, sp := range got {
		path := sp.GetName()
		for p := byID[string(sp.GetParentSpanId())]; p != nil; p = byID[string(p.GetParentSpanId())] {
			path = p.GetName() + " > " + path
		}
		tree[path] += hex.EncodeToString(sp.GetTraceId()) + " "
	}
	for path, want := range map[string]string{
		"tools/call":                                 older + " " + modern + " ",
		"tools/call > tool execute_code":             older + " " + modern + " ",
		"tools/call > tool execute_code > box start": older + " ",
		"tools/call > tool execute_code > box run":   older + " " + modern + " ",
		"tools/list":                                 sdk + " ",
	} {
		if tree[path] != want {
			t.Errorf("%s: got the traces %q, want %q", path, tree[path], want)
		}
	}
	if strings.Contains(text.String(), "hidden") {
		t.Errorf("the spans contain data of the client:\n%s", text.String())
	}
	if t.Failed() {
		t.Log(text.String())
	}
}
