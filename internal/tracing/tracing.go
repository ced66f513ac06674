// Package tracing marks what happens during a request as spans of a trace, for
// those who collect traces. A span has a name and a few words from closed sets;
// it never has arguments, output, ids that clients chose or anything else of
// theirs, and where nobody collects it costs nothing.
//
// The request's span is begun with [Tracer.Request]; whoever does a part of the
// work begins one below it with [Start], and knows nothing of where it goes.
package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// scope names who makes the spans.
const scope = "github.com/glovebox-dev/glovebox"

// Tracer begins traces. A nil Tracer begins none. All methods may be called
// concurrently.
type Tracer struct{ tracer trace.Tracer }

// New returns a Tracer whose spans go to the provider, which the caller closes.
func New(p trace.TracerProvider) *Tracer { return &Tracer{p.Tracer(scope)} }

// Caller is the trace that a request is part of, as W3C Trace Context writes it.
// What is not valid is ignored.
type Caller struct{ Parent, State string }

// Request begins the span of a request, below the caller's if there is one. name
// is of a closed set.
func (t *Tracer) Request(ctx context.Context, c Caller, name string) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	// The context may be of the request that opened a session.
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": c.Parent, "tracestate": c.State})
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer))
	return ctx, Span{span}
}

// Start begins a span below that of ctx. Without one, or if nobody collects it,
// it does nothing, without an allocation. The caller ends it.
func Start(ctx context.Context, name string) (context.Context, Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, Span{}
	}
	ctx, span := parent.TracerProvider().Tracer(scope).Start(ctx, name)
	return ctx, Span{span}
}

// Span is a part of a request's time. The zero Span does nothing.
type Span struct{ span trace.Span }

// Set says something of the span. key and value are of closed sets.
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

// Fail marks the span as failed, for a reason of a closed set.
func (s Span) Fail(reason string) {
	if s.span != nil {
		s.span.SetStatus(codes.Error, reason)
	}
}

// End ends the span; it is called once. The error, which may be nil, marks it as
// failed; its text may be a client's and is not kept.
func (s Span) End(err error) {
	if s.span == nil {
		return
	}
	if err != nil {
		s.span.SetStatus(codes.Error, "")
	}
	s.span.End()
}
