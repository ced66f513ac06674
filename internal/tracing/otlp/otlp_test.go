package otlp

import (
	"compress/gzip"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/glovebox-dev/glovebox/internal/tracing"
)

// receiver is a collector that keeps what it gets.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	spans map[string]*spans.Span // guarded by mu; by name
	about string                 // guarded by mu
	auth  string                 // guarded by mu
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{spans: map[string]*spans.Span{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var body io.Reader = req.Body
		if req.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(body)
			if err != nil {
				t.Error(err)
				return
			}
			body = z
		}
		data, err := io.ReadAll(body)
		var got collector.ExportTraceServiceRequest
		if err != nil || req.URL.Path != "/v1/traces" || proto.Unmarshal(data, &got) != nil {
			t.Errorf("got %s, %d bytes, %v", req.URL, len(data), err)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.auth = req.Header.Get("Authorization")
		for _, rs := range got.GetResourceSpans() {
			r.about = rs.GetResource().String()
			for _, ss := range rs.GetScopeSpans() {
				for _, s := range ss.GetSpans() {
					r.spans[s.GetName()] = s
				}
			}
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func TestSend(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer x")
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	r := newReceiver(t)
	e, err := Open(t.Context(), r.URL, "v7", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, request := e.Tracer().Request(t.Context(), tracing.Caller{
		Parent: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01", State: "vendor=1",
	}, "tools/call")
	_, box := tracing.Start(ctx, "box start")
	box.Set("glovebox.box.source", strings.Repeat("x", 1000))
	box.End(io.EOF)
	request.SetInt("rpc.jsonrpc.error_code", -32602)
	request.End(nil)
	// One whose caller does not want it sampled, and one of no caller.
	_, unwanted := e.Tracer().Request(ctx, tracing.Caller{Parent: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-00"}, "unwanted")
	unwanted.End(nil)
	_, alone := e.Tracer().Request(ctx, tracing.Caller{Parent: "00-nonsense\r\n"}, "alone")
	alone.End(nil)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	root, below, other := r.spans["tools/call"], r.spans["box start"], r.spans["alone"]
	if len(r.spans) != 3 || root == nil || below == nil || other == nil {
		t.Fatalf("got %v", r.spans)
	}
	if id := root.GetTraceId(); string(id) != "\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef" || root.GetTraceState() != "vendor=1" {
		t.Errorf("the trace: got %x, %q", id, root.GetTraceState())
	}
	if string(root.GetParentSpanId()) != "\x01\x23\x45\x67\x89\xab\xcd\xef" || string(below.GetParentSpanId()) != string(root.GetSpanId()) {
		t.Errorf("parents: got %x and %x", root.GetParentSpanId(), below.GetParentSpanId())
	}
	if other.GetParentSpanId() != nil || string(other.GetTraceId()) == string(root.GetTraceId()) {
		t.Error("an invalid traceparent, or the context of another request, became a parent")
	}
	if got := below.GetAttributes()[0].GetValue().GetStringValue(); len(got) != maxAttribute {
		t.Errorf("a long attribute has %d bytes", len(got))
	}
	if below.GetStatus().GetCode() != spans.Status_STATUS_CODE_ERROR || below.GetStatus().GetMessage() != "" {
		t.Errorf("the error: got %v", below.GetStatus())
	}
	for _, want := range []string{"glovebox", "v7", "deployment.environment.name"} {
		if !strings.Contains(r.about, want) {
			t.Errorf("the resource has no %q: %s", want, r.about)
		}
	}
	if r.auth != "Bearer x" {
		t.Errorf("the header of the environment: got %q", r.auth)
	}
}

// A collector that cannot be reached costs a line in the log and nothing else.
func TestSend_UnreachableCollector(t *testing.T) {
	r := newReceiver(t)
	r.Close()
	var log strings.Builder
	e, err := Open(t.Context(), r.URL, "v7", slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	_, span := e.Tracer().Request(t.Context(), tracing.Caller{}, "ping")
	span.End(nil)
	if err := e.Close(); err == nil && !strings.Contains(log.String(), "traces not sent") {
		t.Errorf("the failure was not logged: %v, %s", err, log.String())
	}
	if (*Exporter)(nil).Tracer() != nil || (*Exporter)(nil).Close() != nil {
		t.Error("no exporter has a tracer")
	}
}
