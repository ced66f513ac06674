// Package tracing records the parts of a request as spans of a trace. The name and
// attributes of a span come from closed sets: a span never contains arguments, output,
// ids that clients chose or other client data. Without a collector it costs nothing.
//
// [Tracer.Request] starts the span of a request. [Start] starts a child span of the
// one in its context.
package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// scope is the instrumentation scope of the spans.
const scope = "github.com/glovebox-dev/glovebox"

// Tracer starts the spans of requests. A nil Tracer starts none. All methods may be
// called concurrently.
type Tracer struct{ tracer trace.Tracer }

// New returns a Tracer that sends spans to the provider, which the caller closes.
func New(p trace.TracerProvider) *Tracer { return &Tracer{p.Tracer(scope)} }

// Caller is the caller's trace in W3C Trace Context format. Invalid values are
// ignored.
type Caller struct{ Parent, State string }

// Request starts the span of a request, as a child of the caller's if that has one.
// name is from a closed set.
func (t *Tracer) Request(ctx context.Context, c Caller, name string) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	// Drop the span of the request that opened the session: its context is also ours.
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": c.Parent, "tracestate": c.State})
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer))
	return ctx, Span{span}
}

// Start starts a child of the span in ctx. Without a recording parent it does nothing
// and allocates nothing. The caller ends the span.
func Start(ctx context.Context, name string) (context.Context, Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, Span{}
	}
	ctx, span := parent.TracerProvider().Tracer(scope).Start(ctx, name)
	return ctx, Span{span}
}

// Span is one span. The zero Span does nothing.
type Span struct{ span trace.Span }

// Set sets an attribute. key and value are from closed sets.
func (s Span) Set(key, value string) {
	if s.span != nil {
		s.span.SetAttributes(attribute.String(key, value))
	}
}

// SetInt is Set for a number.
func (s Span) SetInt(key string, value int64) {
	if s.span != nil {
		s.span.SetAttributes(attribute.Int64(key, value))
	}
}

// Fail marks the span as failed. reason is from a closed set.
func (s Span) Fail(reason string) {
	if s.span != nil {
		s.span.SetStatus(codes.Error, reason)
	}
}

// End ends the span and is called once. An error marks the span as failed; its text
// is not recorded, since it may contain client data.
func (s Span) End(err error) {
	if s.span == nil {
		return
	}
	if err != nil {
		s.span.SetStatus(codes.Error, "")
	}
	s.span.End()
}
