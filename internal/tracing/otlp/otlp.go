// Package otlp sends spans to a collector over OTLP/HTTP. The environment
// variables of OpenTelemetry apply: headers, certificates, time-outs and compression
// of the exporter, sampling, the service's name and attributes.
package otlp

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/glovebox-dev/glovebox/internal/tracing"
)

const (
	// closeTimeout bounds the sending of the last spans: a collector that does
	// not answer must not hold a stop up.
	closeTimeout = 5 * time.Second
	// complainEvery is between two lines in the log about a collector that cannot
	// be reached.
	complainEvery = time.Minute
	// maxAttribute bounds the texts of a span, in bytes; ours are words.
	maxAttribute = 256
)

// Exporter sends what its Tracer marks. The owner closes it.
type Exporter struct {
	tracer   *tracing.Tracer
	provider *sdk.TracerProvider
}

// Open returns an Exporter that sends to the endpoint, a URL to which /v1/traces
// is added. It does not wait for a connection: while there is none, spans are
// dropped and the log says so.
func Open(ctx context.Context, endpoint, version string, log *slog.Logger) (*Exporter, error) {
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(strings.TrimSuffix(endpoint, "/")+"/v1/traces"))
	if err != nil {
		return nil, fmt.Errorf("send traces to %q: %w", endpoint, err)
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "glovebox"), attribute.String("service.version", version)),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("describe this server for traces: %w", err)
	}
	otel.SetErrorHandler(&complaints{log: log})
	limits := sdk.NewSpanLimits()
	limits.AttributeValueLengthLimit = maxAttribute
	p := sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(about), sdk.WithRawSpanLimits(limits))
	return &Exporter{tracing.New(p), p}, nil
}

// Tracer begins the spans that are sent; nil of a nil Exporter.
func (e *Exporter) Tracer() *tracing.Tracer {
	if e == nil {
		return nil
	}
	return e.tracer
}

// Close sends what is left, for a few seconds at most.
func (e *Exporter) Close() error {
	if e == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := e.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last traces: %w", err)
	}
	return nil
}

// complaints logs that spans cannot be sent, seldom.
type complaints struct {
	log *slog.Logger

	mu   sync.Mutex
	last time.Time // guarded by mu
}

// Handle implements [otel.ErrorHandler].
func (c *complaints) Handle(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.last) >= complainEvery {
		c.last = now
		c.log.Warn("traces not sent", "err", err)
	}
}
