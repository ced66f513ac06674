package tracing

import (
	"context"
	"errors"
	"testing"

	"go.opentelemetry.io/otel/trace/noop"
)

// TestTracer_OffAllocatesNothing: without a collector spans allocate nothing.
func TestTracer_OffAllocatesNothing(t *testing.T) {
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, 1)
	failed := errors.New("x")
	var tracer *Tracer
	allocs := testing.AllocsPerRun(1000, func() {
		ctx, request := tracer.Request(ctx, Caller{}, "tools/call")
		_, span := Start(ctx, "box run")
		span.Set("a", "b")
		span.SetInt("c", 1)
		span.Fail("d")
		span.End(failed)
		request.End(nil)
	})
	if allocs != 0 {
		t.Errorf("got %v allocations, want none", allocs)
	}
}

// TestStart_UnsampledParent: a span that is not sampled has no child spans.
func TestStart_UnsampledParent(t *testing.T) {
	ctx, request := New(noop.NewTracerProvider()).Request(t.Context(), Caller{Parent: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-00"}, "ping")
	defer request.End(nil)
	if _, span := Start(ctx, "box run"); span.span != nil {
		t.Error("an unsampled span got a child")
	}
}

func BenchmarkOff(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_, span := Start(b.Context(), "box run")
		span.Set("a", "b")
		span.End(nil)
	}
}
